"""Minibatches made of what arrives: every prompt once a pass whatever the order, and nothing waits for later parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.execution.contract import Firing
from flowrl.graph.graph import Kind, Schedule
from flowrl.plan.plan import Plan, StageRun
from flowrl.program.program import Instruction, InstructionKind, Rows
from flowrl.runtime.arrivals import Arrivals
from flowrl.runtime.launchers.contract import Part
from tests.runtime.fakes import FakeGenerator, FakeTrainer, fake_number, make_fake
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.runs import logs_of, nth, resume_fakes, run_fakes, run_killed, with_fakes

RUN = StageRun(steps=3, checkpoint_every_steps=1, loggers=(), samples_logged=2)
PROMPTS, SAMPLES = 4, 3
GENERATE = "actor_infer.generate"


def plan_of(takes: int = 4, updates: int = 2, epochs: int = 1, minibatches: str = "arrival") -> Plan:
    graph = grpo_graph(updates=updates, epochs=epochs, val_every=None)
    graph = structs.replace(graph, schedule=Schedule(takes=takes, minibatches=minibatches))
    return make_plan(stage_plan(graph, split(graph), run=RUN))


class Groups(FakeGenerator):
    """Gives first the prompts that a number drawn with `order` says are done first."""

    def __init__(self, setup: RankSetup, order: str) -> None:
        super().__init__(setup)
        self.order = order

    def open(self, call: Call, batch: Batch) -> None:
        result = self.call(call, batch)
        assert result.batch is not None
        self.made, self.metrics = result.batch, result.metrics
        prompts = np.unique(self.made.prompt_ids)
        self.prompts = sorted(prompts.tolist(), key=lambda i: fake_number(self.order, i))
        self.given: set[int] = set()

    def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
        assert by_prompt, "the estimator works on groups"
        fresh = set(self.prompts[: len(self.prompts) * number // parts]) - self.given
        self.given |= fresh
        places = [at for at, prompt in enumerate(self.made.prompt_ids.tolist()) if prompt in fresh]
        return Result(self.made.select(places), self.metrics if number == 1 else {})


class Watched(FakeTrainer):
    def __init__(self, setup: RankSetup, seen: list[tuple[int, ...]]) -> None:
        super().__init__(setup)
        self.seen = seen

    def call(self, call: Call, batch: Batch) -> Result:
        self.seen.append(tuple(batch.ids.tolist()))
        return super().call(call, batch)


def trained(plan: Plan, folder: Path, order: str | None) -> list[tuple[int, ...]]:
    """Ids of every update of a run, in turn; `order` None: a generator that does not stream."""
    seen: list[tuple[int, ...]] = []

    def make_rank(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR and order is not None:
            return Groups(setup, order)
        return Watched(setup, seen) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    run_fakes(plan, folder, with_fakes(make_rank))
    return seen


@pytest.mark.parametrize(("takes", "updates", "epochs"), [(4, 2, 1), (2, 4, 1), (4, 4, 2), (2, 2, 2)])
def test_every_order_trains_on_the_same_samples_of_a_step(
    tmp_path: Path, takes: int, updates: int, epochs: int
) -> None:
    runs = {
        "fixed": trained(plan_of(takes, updates, epochs, "fixed"), tmp_path / "fixed", None),
        **{order: trained(plan_of(takes, updates, epochs), tmp_path / order, order) for order in "abc"},
        "whole": trained(plan_of(takes, updates, epochs), tmp_path / "whole", None),
    }
    for seen in runs.values():
        assert len(seen) == RUN.steps * updates * epochs
        passes = [seen[n : n + updates] for n in range(0, len(seen), updates)]
        for place, minibatches in enumerate(passes):
            ids = [i for each in minibatches for i in each]
            first = place // epochs * PROMPTS
            assert sorted(ids) == [
                p * 2**SAMPLE_ID_BITS + s for p in range(first, first + PROMPTS) for s in range(SAMPLES)
            ]
            assert {len(each) for each in minibatches} == {PROMPTS * SAMPLES // updates}
            assert minibatches == passes[place // epochs * epochs], "a further pass has the same minibatches"
    assert runs["whole"] == runs["fixed"], "one that gives all at once gives it in the order of ids"
    assert len({tuple(seen) for seen in runs.values()}) > 1


def test_the_first_minibatch_is_of_the_prompts_that_are_done_first(tmp_path: Path) -> None:
    first, *_ = trained(plan_of(), tmp_path, "a")
    done = sorted(range(PROMPTS), key=lambda i: fake_number("a", i))[: PROMPTS // 2]
    assert {i >> SAMPLE_ID_BITS for i in first} == set(done)


def test_an_update_waits_for_its_own_parts_and_no_more() -> None:
    programs = plan_of().stages[0].programs
    rows = [i.rows for i in programs.instructions if i.op == "actor_train.update"]
    assert rows == [Rows(start=0, stop=2, arrived=True), Rows(start=2, stop=4, arrived=True)]
    waits = {
        target: {c.source for c in programs.channels if c.target == target and c.edge is not None and "->" in c.edge}
        for target in ("run actor_train.update 1/2", "run actor_train.update 2/2")
    }
    assert waits["run actor_train.update 1/2"] == {
        *(f"take actor_infer.generate {n}/4" for n in (1, 2)),
        *(f"run advantage.estimate {n}/4" for n in (1, 2)),
    }
    assert waits["run actor_train.update 2/2"] == {
        *(f"take actor_infer.generate {n}/4" for n in (3, 4)),
        *(f"run advantage.estimate {n}/4" for n in (3, 4)),
    }


def test_killed_anywhere_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    plan = plan_of(takes=2)
    whole = run_fakes(plan, tmp_path / "whole")
    for works in range(0, 60, 4):
        folder = run_killed(plan, tmp_path / f"killed-{works}", nth(works))
        if folder is None:
            return
        resume_fakes(folder)
        assert logs_of(folder) == logs_of(whole.folder), f"killed before work {works}"
    raise AssertionError("a run of so few works")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), by_prompt=st.booleans())
def test_minibatches_share_out_what_was_given(data: st.DataObject, by_prompt: bool) -> None:
    """Of any nesting of parts and minibatches: each sample in one of them, as many in each, prompts whole if they are
    given whole, and none of a part that the minibatch does not overlap."""
    few, each = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 2))
    many = few * data.draw(st.integers(1, 3))
    takes, minibatches = data.draw(st.sampled_from([(few, many), (many, few)]))
    prompts = max(takes, minibatches) * each
    order = data.draw(st.permutations(range(prompts if by_prompt else prompts * SAMPLES)))
    arrivals, given_by = _arrivals(takes, prompts, order, by_prompt)
    found: list[int] = []
    for number in range(minibatches):
        size = prompts // minibatches
        rows = Rows(start=number * size, stop=(number + 1) * size, arrived=True)
        firing = Firing(instruction=_instruction("run", number, minibatches, rows), step=1)
        ids = arrivals.given(GENERATE, firing).tolist()
        assert len(ids) == size * SAMPLES
        overlapped = [n for n in range(takes) if n * minibatches < (number + 1) * takes]
        overlapped = [n for n in overlapped if (n + 1) * minibatches > number * takes]
        assert set(ids) <= {i for n in overlapped for i in given_by[n]}
        if by_prompt:
            assert len({i // SAMPLES for i in ids}) == size
        found += ids
    assert sorted(found) == list(range(prompts * SAMPLES))


def _arrivals(takes: int, prompts: int, order: list[int], by_prompt: bool) -> tuple[Arrivals, list[set[int]]]:
    """Takes of two ranks that have given rows in an order, in which whole prompts are or are not kept together."""
    size = prompts // takes
    stops = [None if n + 1 == takes else (n + 1) * size for n in range(takes)]
    session = [_instruction("take", n, takes, Rows(start=n * size, stop=stop)) for n, stop in enumerate(stops)]
    reader = structs.replace(_instruction("run", 0, takes, Rows(stop=size)), op="advantage.estimate", id="part")
    opened = _instruction("open", 0, 1, Rows())
    arrivals = Arrivals(grpo_graph(), (opened, *session, *([reader] if by_prompt else [])))
    share, given_by = len(order) // takes, list[set[int]]()
    for n in range(takes):
        units = order[n * share : (n + 1) * share]
        ids = np.asarray([u * SAMPLES + s for u in units for s in range(SAMPLES)] if by_prompt else units)
        arrivals.add(GENERATE, 1, n, [Part(None, own, own // SAMPLES) for own in (ids[::2], ids[1::2])])
        given_by.append(set(ids.tolist()))
    return arrivals, given_by


def _instruction(kind: str, firing: int, firings: int, rows: Rows) -> Instruction:
    return Instruction(
        id=f"{kind} {firing}",
        kind=InstructionKind(kind),
        pool="p",
        role="r",
        op=GENERATE,
        firing=firing,
        firings=firings,
        rows=rows,
    )


def test_a_minibatch_of_which_nothing_is_left_is_none(tmp_path: Path) -> None:
    """A session that was begun again may give all with an early take: nobody is trained on nothing."""

    class AllAtOnce(Groups):
        def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
            return super().take(parts if number == 1 else number, parts, by_prompt=by_prompt)

    seen: list[tuple[int, ...]] = []

    def make_rank(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR:
            return AllAtOnce(setup, "a")
        return Watched(setup, seen) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    folder = run_fakes(plan_of(takes=2), tmp_path, with_fakes(make_rank)).folder
    assert [len(ids) for ids in seen] == [PROMPTS * SAMPLES] * RUN.steps
    assert [line["samples"] for line in logs_of(folder)["ledger.jsonl"]] == [PROMPTS * SAMPLES] * RUN.steps
