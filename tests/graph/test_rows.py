"""Rows of each op against steps that are played through: prompts drawn, samples made, filters deciding at random."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl.graph.graph import Graph
from flowrl.graph.rates import step_rates, unit_rates
from flowrl.graph.rows import RowBounds, Rows, rows_per_step, share_of
from flowrl.graph.sdf import balance
from flowrl.graph.types import Granularity
from tests.compiler.flows import GRPO, compiled

Row = tuple[int, int]
PLAIN = "  - reward.score -> advantage.estimate\n"


@dataclass(frozen=True)
class Filter:
    unit: str
    keep: float | None
    within: str = "step"

    def left(self, rows: list[Row], chance: random.Random, share: float) -> list[Row]:
        """What the filter lets through of a step's rows; where it is free, each with probability `share`."""
        if self.unit == "group":
            groups = sorted({prompt for prompt, _ in rows})
            if self.keep is not None:
                kept = set(chance.sample(groups, round(self.keep * len(groups))))
            else:
                kept = {prompt for prompt in groups if chance.random() < share}
            return [row for row in rows if row[0] in kept]
        if self.keep is None:
            return [row for row in rows if chance.random() < share]
        if self.within == "step":
            return sorted(chance.sample(rows, round(self.keep * len(rows))))
        groups = {prompt: [row for row in rows if row[0] == prompt] for prompt, _ in rows}
        return sorted(row for own in groups.values() for row in chance.sample(own, round(self.keep * len(own))))


def _flow(prompts: int, samples: int, filters: Iterable[Filter], refill: tuple[int, float] | None = None) -> str:
    roles, edges, above = "", "", "reward.score"
    for place, each in enumerate(filters):
        keep = f"keep_top: {each.keep}, " if each.keep is not None else "min: 0.5, "
        within = "within: group, " if each.within == "group" else ""
        roles += f"  f{place}: {{kind: filter, rule: threshold, unit: {each.unit}, {keep}{within}by: reward.rewards}}\n"
        edges += f"  - {above} -> f{place}.select\n"
        above = f"f{place}.select"
    more = f", refill: {{max_rounds: {refill[0]}, oversample: {refill[1]}}}" if refill else ""
    text = GRPO.replace(PLAIN, f"{edges}  - {above} -> advantage.estimate\n").replace("edges:", f"{roles}edges:")
    text = text.replace("estimator: grpo", "estimator: reinforce")
    return text.replace("prompts: 8, samples_per_prompt: 4", f"prompts: {prompts}, samples_per_prompt: {samples}{more}")


FILTERS = st.builds(
    Filter, unit=st.sampled_from(["sample", "group"]), keep=st.sampled_from([None, 0.25, 0.5, 1.0])
) | st.builds(Filter, unit=st.just("sample"), keep=st.sampled_from([0.25, 0.5, 1.0]), within=st.just("group"))


def _whole(prompts: int, samples: int, filters: Iterable[Filter]) -> bool:
    """Whether every fixed share is a whole count, where the count before it is fixed."""
    groups, rows = prompts, prompts * samples
    for each in filters:
        if each.keep is None:
            return all(later.keep is None for later in filters)  # what is left of a random count is not looked at
        base = samples if each.within == "group" else groups if each.unit == "group" else rows
        left = each.keep * base
        if left != int(left) or left < 1 or (each.unit == "group" and rows != groups * samples):
            return False
        if each.within == "group" and rows != groups * samples:
            return False
        rows = int(left) * (groups if each.within == "group" else samples if each.unit == "group" else 1)
        groups = int(left) if each.unit == "group" else groups
    return True


@given(
    prompts=st.sampled_from([4, 8, 16]),
    samples=st.sampled_from([2, 4]),
    filters=st.lists(FILTERS, max_size=2),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=80)
def test_every_step_lies_within_the_bounds_and_reaches_them(
    prompts: int, samples: int, filters: list[Filter], seed: int
) -> None:
    assume(_whole(prompts, samples, filters))
    graph = compiled(_flow(prompts, samples, filters))
    chance = random.Random(seed)
    rows_at: dict[str, set[int]] = {op.id: set() for op in graph.ops}
    for share in (0.0, 1.0, 0.5, 0.5, 0.5):
        rows = [(prompt, sample) for prompt in range(prompts) for sample in range(samples)]
        rows_at["data.train"].add(prompts)
        for id in ("actor_infer.generate", "reward.score"):
            rows_at[id].add(len(rows))
        for place, each in enumerate(filters):
            rows_at[f"f{place}.select"].add(len(rows))
            rows = each.left(rows, chance, share)
        for id in ("advantage.estimate", "actor_train.update"):
            rows_at[id].add(len(rows))
    for op in graph.ops:
        bounds = rows_per_step(graph, op)
        assert bounds == RowBounds(min(rows_at[op.id]), max(rows_at[op.id])), op.id


@given(
    prompts=st.integers(2, 6),
    samples=st.sampled_from([2, 4]),
    filters=st.lists(FILTERS.filter(lambda f: f.keep is None or f.within == "group"), min_size=1, max_size=2),
    rounds=st.integers(1, 4),
    oversample=st.sampled_from([1.0, 1.5, 2.0]),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=80)
def test_refill_draws_until_enough_is_left(
    prompts: int, samples: int, filters: list[Filter], rounds: int, oversample: float, seed: int
) -> None:
    """Play rounds: a round draws `oversample` prompts for each that is needed. Steps that run out of rounds do not
    count: they end the run."""
    assume(all(f.keep is None or f.keep * samples >= 1 for f in filters))
    assume(len(filters) < 2 or filters[1].within != "group" or filters[0].unit == "group")
    graph = compiled(_flow(prompts, samples, filters, (rounds, oversample)))
    rows, chance = Rows(graph), random.Random(seed)
    for _ in range(20):
        drawn, kept = _round_by_round(prompts, samples, filters, rounds, oversample, chance)
        if len({prompt for prompt, _ in kept}) < prompts:
            continue
        for id, count in (
            ("data.train", drawn),
            ("actor_infer.generate", drawn * samples),
            ("f0.select", drawn * samples),
        ):
            _assert_within(rows.bounds(graph.op(id)), count)
        for id in ("advantage.estimate", "actor_train.update"):
            _assert_within(rows.bounds(graph.op(id)), len(kept))
            assert rows.prompts(graph.op(id)) == RowBounds(prompts, prompts)


def _round_by_round(
    prompts: int, samples: int, filters: list[Filter], rounds: int, oversample: float, chance: random.Random
) -> tuple[int, list[Row]]:
    drawn, kept = 0, list[Row]()
    share = chance.choice([0.3, 0.7, 1.0])
    for _ in range(rounds):
        need = prompts - len({prompt for prompt, _ in kept})
        if need == 0:
            break
        fresh = range(drawn, drawn + ceil(need * oversample))
        drawn += len(fresh)
        rows = [(prompt, sample) for prompt in fresh for sample in range(samples)]
        for each in filters:
            rows = each.left(rows, chance, share)
        wanted = sorted({prompt for prompt, _ in rows})[:need]
        kept += [row for row in rows if row[0] in wanted]
    return drawn, kept


def _assert_within(bounds: RowBounds, count: int) -> None:
    assert bounds.least <= count
    assert bounds.most is not None
    assert count <= bounds.most


PAIRS = """
flowrl: 1
name: dpo
models: {policy: {source: some/model}}
data: {train: {source: pairs.jsonl, prompt: question, chosen: better, rejected: worse}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: bradley_terry}}
edges:
  - data.train -> actor_train.update
step: {prompts: 8}
"""


def test_pairs_of_a_data_set_are_two_rows() -> None:
    text = PAIRS.replace("some/model", "some/model, head: scalar")
    graph = compiled(text)
    assert rows_per_step(graph, graph.op("data.train")) == RowBounds(8, 8)
    assert rows_per_step(graph, graph.op("actor_train.update")) == RowBounds(16, 16)


def test_of_a_group_best_worst_picks_two() -> None:
    text = GRPO.replace("estimator: grpo", "estimator: best_worst").replace("loss: ppo", "loss: dpo, beta: 0.1")
    text = text.replace("  reward: {", "  reference: {model: policy, backend: fsdp}\n  reward: {")
    text = text.replace("-> reward.score\n", "-> reward.score, reference.log_probs\n")
    graph = compiled(text.replace("estimate -> actor_train", "estimate, reference.log_probs -> actor_train"))
    counts = {op.id: rows_per_step(graph, op).fixed for op in graph.ops}
    assert counts["advantage.estimate"] == counts["reference.log_probs"] == 32
    assert counts["actor_train.update"] == 16


def test_validation_has_rows_that_nobody_knows_yet() -> None:
    text = GRPO.replace("data: {train:", "data: {val: {source: val.jsonl, prompt: question, keep: [entry]}, train:")
    text = text.replace(
        "step:", "  - data.val -> actor_infer.generate@val\n  - actor_infer.generate@val -> reward.score@val\nstep:"
    )
    graph = compiled(text)
    assert rows_per_step(graph, graph.op("reward.score@val")) == RowBounds(0, None)
    assert rows_per_step(graph, graph.op("reward.score")).fixed == 32


@pytest.mark.parametrize(
    ("share", "count", "rows"), [(0.25, 8, 2), (0.333, 9, 3), (0.3333, 96, 32), (0.3, 8, None), (0.01, 32, None)]
)
def test_shares(share: float, count: int, rows: int | None) -> None:
    found = share_of(share, count)
    assert (int(found) if found.denominator == 1 else None) == rows


def _rows_of_a_firing(graph: Graph, rows: Rows, id: str) -> int:
    """Straight from the words: one prompt, one sample, the samples of a prompt, the step."""
    op = graph.op(id)
    step = rows.bounds(op).fixed
    assert step is not None
    sizes = {Granularity.PROMPT: 1, Granularity.SAMPLE: 1, Granularity.STEP: step}
    return sizes.get(op.granularity, rows.samples_per_prompt(op))


@given(
    prompts=st.sampled_from([4, 8, 12]),
    samples=st.sampled_from([2, 4]),
    updates=st.sampled_from([1, 2, 4]),
    epochs=st.integers(1, 3),
    estimator=st.sampled_from(["grpo", "reinforce", "reinforce_pp"]),
)
@settings(max_examples=40)
def test_firings_times_their_rows_are_the_rows_of_the_step(
    prompts: int, samples: int, updates: int, epochs: int, estimator: str
) -> None:
    text = GRPO.replace(
        "prompts: 8, samples_per_prompt: 4, updates: 1", f"prompts: {prompts}, samples_per_prompt: {samples}"
    )
    text = text.replace("loss: ppo", f"loss: ppo, updates: {updates}, epochs: {epochs}")
    graph = compiled(text.replace("estimator: grpo", f"estimator: {estimator}"))
    rows = Rows(graph)
    unit, step = (balance(v.actors, v.channels).repetitions for v in (unit_rates(graph), step_rates(graph)))
    for op in graph.ops:
        assert step[op.id] == op.firings
        if op.method == "update":
            assert unit[op.id] == updates * epochs
        else:
            assert unit[op.id] * _rows_of_a_firing(graph, rows, op.id) == rows.bounds(op).fixed
