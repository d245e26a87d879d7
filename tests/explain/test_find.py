"""Keys: whole, shortened where only one number has them, near names, and all candidates where several have them."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.explain.book import book_of
from flowrl.explain.find import find
from tests.explain.plans import small


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ("step", "step"),
        ("d2", "D2"),
        ("all", "all"),
        ("node0/1", "node0/1"),
        ("all.actor_train.update.activations", "all.actor_train.update.activations"),
        ("ALL.actor_train.update.Activations", "all.actor_train.update.activations"),
        ("all.actor_infer.generate.KV_cache", "all.actor_infer.generate.KV cache"),
        ("generate.kv_cache", "all.actor_infer.generate.KV cache"),
        ("generate.decode", "actor_infer.generate.decode"),
        ("decode", "actor_infer.generate.decode"),
        ("actor_train.update", "actor_train.update"),
        ("actor_train => actor_infer", "actor_train => actor_infer"),
        ("all.generate.decode", None),
    ],
)
def test_key_is_found_by_what_only_it_has(asked: str, key: str | None) -> None:
    book = book_of(small())
    if key is None:
        with pytest.raises(FlowError, match="FR0720"):
            find(book, asked, "plan.json")
    else:
        assert find(book, asked, "plan.json").key == key


def test_several_are_listed_and_none_is_taken() -> None:
    with pytest.raises(FlowError) as told:
        find(book_of(small()), "optimizer_step", "plan.json")
    (fault,) = told.value.diagnostics
    assert fault.code == "FR0721"
    assert {note.strip() for note in fault.notes[1:]} == {
        "actor_train.update.optimizer step",
        "critic.update.optimizer step",
    }


def test_near_key_is_named() -> None:
    with pytest.raises(FlowError) as told:
        find(book_of(small()), "all.critic.update.activatoins", "plan.json")
    (fault,) = told.value.diagnostics
    assert (fault.code, fault.helps[0].text.count("`all.critic.update.activations`")) == ("FR0720", 1)


def test_every_key_finds_its_own_entry() -> None:
    book = book_of(small())
    assert all(find(book, key, "plan.json").key == key for key in book)
