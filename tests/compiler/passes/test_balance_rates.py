"""The batch algebra against brute force."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl.graph.graph import Graph
from flowrl.graph.params import DataParams, GenerateParams
from flowrl.graph.rates import RowBounds, rows_per_step
from flowrl.graph.sizes import nearest_divisors, nearest_legal
from tests.compiler.flows import GRPO, PPO, compiled, refused


def _sized(prompts: int, updates: int, epochs: int = 1) -> str:
    step = f"step: {{prompts: {prompts}, samples_per_prompt: 4, updates: {updates}, epochs: {epochs}}}"
    return GRPO.replace("step: {prompts: 8, samples_per_prompt: 4, updates: 1}", step)


@given(st.integers(1, 300), st.integers(1, 300))
def test_nearest_sizes_are_the_nearest_legal_ones(prompts: int, updates: int) -> None:
    legal = [u for u in range(1, prompts + 1) if prompts % u == 0]
    below, above = [u for u in legal if u < updates], [u for u in legal if u > updates]
    assert nearest_divisors(prompts, updates) == tuple(below[-1:] + above[:1])
    if prompts % updates:
        whole = [p for p in range(1, prompts + updates + 1) if p % updates == 0]
        under, over = [p for p in whole if p < prompts], [p for p in whole if p > prompts]
        assert nearest_legal(lambda count: count % updates == 0, prompts) == tuple(under[-1:] + over[:1])


@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_step_is_legal_iff_its_updates_share_the_prompts_evenly(prompts: int, updates: int, epochs: int) -> None:
    """Brute force: deal the prompts out to the updates one by one; legal iff all hands are equal and none empty."""
    hands = [0] * updates
    for prompt in range(prompts):
        hands[prompt % updates] += 1
    problems = refused(_sized(prompts, updates, epochs))
    assert (problems == []) == (len(set(hands)) == 1 and hands[0] > 0)
    assert {d.code for d in problems} <= {"FR0303"}
    if not problems:
        graph = compiled(_sized(prompts, updates, epochs))
        assert graph.op("actor_train.update").firings == updates * epochs


def test_arithmetic_is_told() -> None:
    problem = refused(_sized(10, 4))[0]
    assert problem.code == "FR0303"
    assert problem.why is not None
    assert "10 = 4·2 + 2" in problem.why
    assert problem.helps[0].text == "nearest legal sizes: prompts 8 or 12; or updates 2 or 5"


def test_trainer_overrides_the_step() -> None:
    graph = compiled(GRPO.replace("{loss: ppo}", "{loss: ppo, updates: 4, epochs: 2}"))
    assert graph.op("actor_train.update").firings == 8


def test_group_estimators_need_a_group() -> None:
    assert [d.code for d in refused(GRPO.replace("samples_per_prompt: 4", "samples_per_prompt: 1"))] == ["FR0304"]
    single = GRPO.replace("samples_per_prompt: 4", "samples_per_prompt: 1").replace("grpo}", "reinforce}")
    assert refused(single) == []


VAL = GRPO.replace("data: {train:", "data: {val: {source: val.jsonl, prompt: question, keep: [entry]}, train:").replace(
    "step:", "  - {edge: data.val -> actor_infer.generate@val, every_steps: 5}\n"
    "  - actor_infer.generate@val -> reward.score@val\nstep:"
)  # fmt: skip


def _rows(graph: Graph, id: str) -> int | None:
    params = graph.op(id).params
    assert isinstance(params, DataParams)
    return params.prompts


def test_validation_takes_the_whole_set_and_training_the_step() -> None:
    graph = compiled(VAL)
    assert (_rows(graph, "data.train"), _rows(graph, "data.val")) == (8, None)
    periods = {op.id: op.every_steps for op in graph.ops if op.every_steps != 1}
    assert periods == {"data.val": 5, "actor_infer.generate@val": 5, "reward.score@val": 5}
    params = graph.op("actor_infer.generate@val").params
    assert isinstance(params, GenerateParams)
    assert params.samples_per_prompt == 1
    assert params.temperature == 0.7


REMAX = VAL.replace("estimator: grpo", "estimator: remax, inputs: {baseline_rewards: reward@val.rewards}").replace(
    "{edge: data.val -> actor_infer.generate@val, every_steps: 5}", "data.train -> actor_infer.generate@val"
)


def test_another_call_gives_one_row_a_prompt() -> None:
    graph = compiled(REMAX)
    bound = {i.slot: i.source for i in graph.op("advantage.estimate").inputs}
    assert bound == {
        "rewards": "reward.score",
        "baseline_rewards": "reward.score@val",
        "loss_mask": "actor_infer.generate",
    }
    many = REMAX.replace("temperature: 0.7}", "temperature: 0.7}, generate@val: {samples_per_prompt: 2}")
    assert [d.code for d in refused(many)] == ["FR0308"]


FILTERED = GRPO.replace(
    "  advantage:", "  best: {kind: filter, rule: threshold, unit: UNIT, KEEP, by: reward.rewards}\n  advantage:"
).replace("  - reward.score -> advantage", "  - reward.score -> best.select\n  - best.select -> advantage")
FILTERED = FILTERED.replace("estimator: grpo", "estimator: reinforce")


def _filtered(unit: str, keep: str, prompts: int, updates: int = 1, more: str = "") -> str:
    text = FILTERED.replace("UNIT", unit).replace("KEEP", keep)
    step = f"prompts: {prompts}, samples_per_prompt: 4, updates: {updates}{more}"
    return text.replace("prompts: 8, samples_per_prompt: 4, updates: 1", step)


def _numbers(text: str, key: str) -> list[str]:
    """`… prompts 8 or 12; …` → 8, 12."""
    found = re.search(rf"\b{key} ([\d.]+)(?: or ([\d.]+))?", text)
    return [] if found is None else [number for number in found.groups() if number is not None]


@given(unit=st.sampled_from(["group", "sample"]), share=st.integers(1, 19), prompts=st.integers(2, 20))
@settings(max_examples=25)
def test_shares_and_prompts_named_are_the_nearest_legal(unit: str, share: int, prompts: int) -> None:
    """20ths of the groups or samples of a step: a share s/20 of r rows is whole iff 20 divides s·r."""
    width = 1 if unit == "group" else 4
    assume(share * prompts * width % 20)
    (problem,) = refused(_filtered(unit, f"keep_top: {share / 20:g}", prompts))
    assert problem.code == "FR0313"
    legal = [p for p in range(1, 41) if share * p * width % 20 == 0]
    nearest = [*[p for p in legal if p < prompts][-1:], *[p for p in legal if p > prompts][:1]]
    assert _numbers(problem.helps[0].text, "prompts") == [str(p) for p in nearest]
    for keep in _numbers(problem.helps[0].text, "keep_top"):
        assert abs(float(keep) * prompts * width - round(float(keep) * prompts * width)) < 0.02
        assert abs(float(keep) - share / 20) * prompts * width < 1.02
        assert refused(_filtered(unit, f"keep_top: {keep}", prompts)) == []


@given(share=st.sampled_from([1, 2, 3, 4]), prompts=st.integers(1, 12), updates=st.integers(2, 5))
@settings(max_examples=25)
def test_updates_share_what_a_fixed_filter_leaves(share: int, prompts: int, updates: int) -> None:
    """`share` quarters of 4·prompts groups are share·prompts."""
    problems = refused(_filtered("group", f"keep_top: {share / 4}", 4 * prompts, updates))
    assert [d.code for d in problems] == ([] if share * prompts % updates == 0 else ["FR0303"])
    for problem in problems:
        legal = [p for p in range(1, 400) if share * p % 4 == 0 and share * p // 4 % updates == 0]
        nearest = [*[p for p in legal if p < 4 * prompts][-1:], *[p for p in legal if p > 4 * prompts][:1]]
        assert _numbers(problem.helps[0].text, "prompts") == [str(p) for p in nearest]
        assert f"{share * prompts} = {updates}·" in (problem.why or "")


@pytest.mark.parametrize(
    ("unit", "keep", "more", "codes"),
    [
        ("group", "min: 0.5", "", ["FR0314"]),
        ("sample", "min: 0.5", "", ["FR0314"]),
        ("sample", "keep_top: 0.5", "", ["FR0314"]),
        ("group", "keep_top: 0.5", "", []),
        ("sample", "keep_top: 0.5, within: group", "", []),
        ("group", "min: 0.5, action: mask", "", []),
        ("group", "min: 0.5", ", refill: {max_rounds: 3}", []),
        ("sample", "keep_top: 0.5", ", refill: {max_rounds: 3}", []),
    ],
)
def test_minibatches_have_a_size_that_is_known(unit: str, keep: str, more: str, codes: list[str]) -> None:
    assert [d.code for d in refused(_filtered(unit, keep, 8, 2, more))] == codes
    assert refused(_filtered(unit, keep, 8, 1, more)) == []


def test_stale_samples_that_are_dropped_leave_a_step_of_unknown_size() -> None:
    text = _sized(8, 2).replace("\nstep:", "\nschedule: {max_lag: 1, when_stale: drop}\nstep:")
    (problem,) = refused(text)
    assert problem.code == "FR0314"
    assert "`when_stale: drop`" in problem.labels[0].text
    assert refused(text.replace("max_lag: 1", "max_lag: 0")) == []
    one = compiled(text.replace("updates: 2", "updates: 1"))
    assert rows_per_step(one, one.op("actor_train.update")) == RowBounds(0, 32)
    assert rows_per_step(one, one.op("reward.score")) == RowBounds(32, 32)
    filled = compiled(text.replace("updates: 2", "updates: 2, refill: {max_rounds: 3}"))
    assert rows_per_step(filled, filled.op("actor_train.update")) == RowBounds(32, 32)
    assert rows_per_step(filled, filled.op("reward.score")) == RowBounds(32, 96)


@given(updates=st.integers(1, 6), epochs=st.integers(1, 3), every=st.integers(1, 12))
@settings(max_examples=40)
def test_versions_divide_the_updates_of_a_step(updates: int, epochs: int, every: int) -> None:
    """Count to the last update of the step: it must be one that publishes."""
    text = _sized(60, updates, epochs)
    text = text.replace(
        "- actor_train => actor_infer", f"- {{edge: actor_train => actor_infer, every_updates: {every}}}"
    )
    published = [n for n in range(1, updates * epochs + 1) if n % every == 0]
    is_legal = published[-1:] == [updates * epochs]
    problems = refused(text)
    assert [d.code for d in problems] == ([] if is_legal else ["FR0312"])
    for problem in problems:
        for near in _numbers(problem.helps[0].text, "every_updates"):
            assert refused(text.replace(f"every_updates: {every}", f"every_updates: {near}")) == []
    if is_legal:
        edge = next(e for e in compiled(text).edges if e.id == "actor_train => actor_infer")
        assert edge.tokens == len(published)


def test_independent_faults_are_told_together() -> None:
    text = PPO.replace("updates: 2", "updates: 3").replace("loss: value", "loss: value, updates: 5")
    text = text.replace("- actor_train => actor_infer", "- {edge: actor_train => actor_infer, every_updates: 2}")
    assert sorted(d.code for d in refused(text)) == ["FR0303", "FR0303", "FR0312"]
