"""The batch algebra against brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.graph.graph import Graph
from flowrl.graph.params import DataParams, GenerateParams
from flowrl.graph.sizes import nearest_divisors, nearest_multiples
from tests.compiler.flows import GRPO, compiled, refused


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
        assert nearest_multiples(updates, prompts) == tuple(under[-1:] + over[:1])


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
