"""The grammar of why-not: every form is read, and whatever else stands there is told at its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import FlowError
from flowrl.explain.question import FORMS, SOURCE, Wish, parse
from flowrl.placement.request import Mode

ROLES = ("actor", "infer", "critic", "on", "reference")
POOLS = ("rollout", "train", "pool")


def one(question: str) -> Wish:
    (wish,) = parse(question, ROLES, POOLS)
    return wish


@pytest.mark.parametrize(
    ("question", "wish"),
    [
        ("critic on rollout", Wish("critic on rollout", roles=("critic",), pool="rollout")),
        ("critic ON pool rollout", Wish("critic ON pool rollout", roles=("critic",), pool="rollout")),
        ("critic on pool", Wish("critic on pool", roles=("critic",), pool="pool")),
        ("critic with actor", Wish("critic with actor", roles=("critic", "actor"))),
        ("critic with actor and infer", Wish("critic with actor and infer", roles=("critic", "actor", "infer"))),
        ("critic apart", Wish("critic apart", roles=("critic",), apart=True)),
        ("critic and actor apart", Wish("critic and actor apart", roles=("critic", "actor"), apart=True)),
        ("actor tp4 pp2", Wish("actor tp4 pp2", roles=("actor",), axes={"tp": 4, "pp": 2})),
        ("actor tp=4 EP8", Wish("actor tp=4 EP8", roles=("actor",), axes={"tp": 4, "ep": 8})),
        ("critic stays", Wish("critic stays", roles=("critic",), stays=True)),
        ("critic leaves", Wish("critic leaves", roles=("critic",), stays=False)),
        ("recompute full of actor", Wish("recompute full of actor", roles=("actor",), recompute="full")),
        ("rollout 8 gpus", Wish("rollout 8 gpus", pool="rollout", gpus=8)),
        ("pool rollout 1 gpu", Wish("pool rollout 1 gpu", pool="rollout", gpus=1)),
        ("train 8", Wish("train 8", pool="train", gpus=8)),
        ("colocated", Wish("colocated", mode=Mode.COLOCATED)),
        ("Disaggregated", Wish("Disaggregated", mode=Mode.DISAGGREGATED)),
    ],
)
def test_forms(question: str, wish: Wish) -> None:
    assert one(question) == wish


def test_wishes_are_joined_by_commas() -> None:
    wishes = parse("critic stays,actor tp2 ,  train 8 gpus", ROLES, POOLS)
    assert [wish.text for wish in wishes] == ["critic stays", "actor tp2", "train 8 gpus"]


def fault(question: str) -> tuple[str, str, str]:
    """Code, the text at its place, and the label."""
    with pytest.raises(FlowError) as caught:
        parse(question, ROLES, POOLS)
    (diagnostic,) = caught.value.diagnostics
    label = diagnostic.labels[0]
    assert label.span.file == SOURCE
    return diagnostic.code, question[label.span.column - 1 : label.span.end_column - 1], label.text


@pytest.mark.parametrize(
    ("question", "code", "place", "words"),
    [
        ("", "FR0731", "", "empty"),
        (" , critic stays", "FR0731", ",", "before the comma"),
        ("critic please", "FR0731", "please", "not what can stand here"),
        ("critic dp8", "FR0731", "dp8", "dp follows"),
        ("critic tp0", "FR0731", "tp0", "one part at least"),
        ("rollout 0 gpus", "FR0731", "0", "one device at least"),
        ("recompute some of actor", "FR0731", "some", "none, selective, full"),
        ("recompute full", "FR0731", "recompute full", "MODE of ROLE"),
        ("critic with critic", "FR0731", "critic with critic", "with itself"),
        ("critic or actor apart", "FR0731", "or", "`and` stands between"),
        ("apart", "FR0731", "apart", "roles are missing"),
        ("critik on rollout", "FR0732", "critik", "`critik` is no role of this plan"),
        ("critic on rollouts", "FR0732", "rollouts", "`rollouts` is no pool of this plan"),
        ("critic stays, critic leaves", "FR0733", "critic leaves", "stays or leaves"),
        ("colocated, critic apart", "FR0733", "critic apart", "share one pool"),
        ("colocated, disaggregated", "FR0733", "disaggregated", "colocated or disaggregated"),
        ("critic tp2, critic tp4", "FR0733", "critic tp4", "one layout"),
        ("critic with actor, critic and actor apart", "FR0733", "critic and actor apart", "both apart and"),
        ("train 8, train 4", "FR0733", "train 4", "8 devices or 4"),
        ("critic on train, critic on rollout", "FR0733", "critic on rollout", "in one pool"),
    ],
)
def test_what_is_no_question_is_told_at_its_place(question: str, code: str, place: str, words: str) -> None:
    found = fault(question)
    assert found[:2] == (code, place)
    assert words in found[2]


def test_near_names() -> None:
    with pytest.raises(FlowError) as caught:
        parse("critic on rollouts", ROLES, POOLS)
    assert caught.value.diagnostics[0].helps[0].text == "a pool with a near name exists: `rollout`"


FORM_WORDS = ("on", "with", "and", "apart", "tp4", "dp2", "pp0", "stays", "leaves", "recompute", "none", "of", "8", "0")
WORDS = st.sampled_from([*ROLES, *POOLS, *FORM_WORDS, "gpus", ",", "colocated", "x", "\n"])


@given(st.lists(WORDS, max_size=9).map(" ".join) | st.text(max_size=30))
def test_any_text_is_read_or_told(question: str) -> None:
    try:
        wishes = parse(question, ROLES, POOLS)
    except FlowError as error:
        assert {each.code for each in error.diagnostics} <= {"FR0731", "FR0732", "FR0733"}  # noqa: PT017
        return
    assert wishes
    assert all(set(wish.roles) <= set(ROLES) and wish.pool in (*POOLS, None) for wish in wishes)


def test_every_form_of_the_page_is_a_question() -> None:
    named = {"ROLE": "critic", "POOL": "rollout"}
    for form in FORMS:
        words = form.split()
        roles = iter(("critic", "actor"))
        text = " ".join(next(roles) if word == "ROLE" else named.get(word, word) for word in words)
        assert len(parse(text, ROLES, POOLS)) == 1, text
