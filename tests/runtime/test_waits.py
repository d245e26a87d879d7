"""Waits on edges that end: what a run does when the other end does not come to an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.diag.diagnostic import FlowError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.graph.graph import Graph
from flowrl.graph.signatures import FIELDS
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Plan, StageRun
from flowrl.program.program import Instruction, InstructionKind
from flowrl.runtime.launchers.contract import Completion, Part, Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.runfile import RunStatus
from flowrl.runtime.session import SessionOptions
from flowrl.runtime.waits import Waits, no_rows, refused, whole_groups
from flowrl.runtime.worker import part_of
from flowrl.spec import load
from tests.conftest import Told
from tests.runtime.fakes import make_fake
from tests.runtime.plans import grpo_graph, make_op, make_plan, reads, split, stage_plan
from tests.runtime.runs import at, lines_of, logs_of, run_fakes, with_fakes
from tests.runtime.test_episodes import LAKE
from tests.runtime.written import TEXTS, place, written

RUN = StageRun(steps=3, loggers=(), samples_logged=2)
SCORED = "reward.score -> advantage.estimate"
ASKED = "actor_infer.generate -> reward.score"
SYNC = "actor_train => actor_infer"
Withholds = Callable[[Work], bool]


def timed(edge: str, policy: str | None, seconds: float = 0.05) -> Graph:
    graph = written(grpo_graph(val_every=None))
    declared = tuple(
        structs.replace(e, timeout_seconds=seconds, on_timeout=policy, span=e.span or place("reward"))
        if e.id == edge
        else e
        for e in graph.declared
    )
    return structs.replace(graph, declared=declared)


def plan_of(edge: str, policy: str | None) -> Plan:
    graph = timed(edge, policy)
    return make_plan(stage_plan(graph, split(graph), RUN))


class Withholding(InlineLauncher):
    """Does a piece of work and tells nobody; asked to give it up, it has the rows of its first `done` samples."""

    def __init__(self, withholds: Withholds, done: int = 0) -> None:
        super().__init__(1, make_fake)
        self._withholds, self._done = withholds, done
        self._kept: list[Completion] = []
        self.revived: list[str] = []

    def submit(self, work: Work) -> None:
        super().submit(work)
        if self._withholds(work):
            self._kept.append(self._completed.pop())

    def give_up(self, work: Work, nothing: Batch) -> Sequence[Part]:
        made = next(kept for kept in self._kept if kept.work.firing == work.firing)
        (part,) = made.parts
        batch: Batch = part.handle
        if self._done == 0:
            return (part_of(nothing, nothing),)
        first = batch.select(range(self._done))
        return (part_of(first, first),)

    def revive(self, role: str) -> None:
        self.revived.append(role)
        super().revive(role)


def session(launcher: Withholding) -> SessionOptions:
    return SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: launcher)


def once(instruction: str, step: int) -> Withholds:
    left = [1]
    return lambda work: at(instruction, step)(work) and left.pop() == 1 if left else False


def test_abort_says_who_waits_for_whom(tmp_path: Path) -> None:
    launcher = Withholding(once("run reward.score", 2))
    with pytest.raises(FlowError) as caught:
        run_fakes(plan_of(SCORED, None), tmp_path, session(launcher))
    (fault,) = caught.value.diagnostics
    assert (fault.code, fault.exit_code) == ("FR0925", 5)
    words = fault.labels[0].text
    assert words.startswith("`run advantage.estimate` has waited 0.")
    assert words.endswith(f"s for `run reward.score` in step 2: `{SCORED}` allows 0.05 s")
    assert "pool host, role reward: `run reward.score` has not ended" in fault.notes
    assert not launcher.revived


def test_the_frame(told: Told) -> None:
    (edge,) = (e for e in timed(SCORED, None, 60.0).declared if e.id == SCORED)
    source = Instruction(id="run reward.score", kind=InstructionKind.RUN, pool="host", role="reward", op="reward.score")
    receiver = Instruction(id="run advantage.estimate", kind=InstructionKind.RUN, pool="host", role="advantage")
    stage = stage_plan(timed(SCORED, None, 60.0))
    waits = Waits(stage)
    (channel,) = (c.id for c in stage.programs.channels if c.edge == SCORED)
    flying = {(source.id, 7): Work(Firing(instruction=source, step=7))}
    lacking = [(Firing(instruction=receiver, step=7), [channel])]
    assert waits.overdue(100.0, lacking, flying) is None
    overdue = waits.overdue(161.5, lacking, flying)
    assert overdue is not None
    assert overdue.edge == edge
    told(overdue.error(), "FR0925", texts=TEXTS)


@pytest.mark.parametrize(
    ("edge", "instruction"),
    [
        (SCORED, "run reward.score"),
        (ASKED, "run actor_infer.generate"),
        ("data.train -> actor_infer.generate", "run data.train"),
    ],
)
def test_retry_gives_what_an_undisturbed_run_gives(tmp_path: Path, edge: str, instruction: str) -> None:
    plan = plan_of(edge, "retry")
    launcher = Withholding(once(instruction, 2))
    disturbed = run_fakes(plan, tmp_path / "a", session(launcher))
    whole = run_fakes(plan, tmp_path / "b", with_fakes())
    assert disturbed.state is RunStatus.FINISHED
    assert logs_of(disturbed.folder)["ledger.jsonl"] == logs_of(whole.folder)["ledger.jsonl"]
    assert logs_of(disturbed.folder)["samples.jsonl"] == logs_of(whole.folder)["samples.jsonl"]
    assert launcher.revived == [edge.partition(" ")[0].rpartition(".")[0] if "data" not in edge else "data.train"]
    (loss,) = lines_of(disturbed.folder / "faults.jsonl")
    assert loss["doing"] == instruction
    assert edge in loss["reason"]


def test_retry_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        run_fakes(plan_of(SCORED, "retry"), tmp_path, session(Withholding(at("run reward.score", 2))))
    assert caught.value.diagnostics[0].code == "FR0920"


@pytest.mark.parametrize(("done", "groups"), [(0, 0), (2, 0), (3, 1), (7, 2), (11, 3)])
def test_drop_takes_incomplete_groups_out_of_the_step_on_every_path(tmp_path: Path, done: int, groups: int) -> None:
    """Of 4 prompts with 3 samples each so many groups are whole when so many samples are scored."""
    result = run_fakes(plan_of(SCORED, "drop"), tmp_path, session(Withholding(once("run reward.score", 2), done)))
    assert result.state is RunStatus.FINISHED
    trained = {line["step"]: line["samples"] for line in lines_of(result.folder / "ledger.jsonl")}
    assert trained.get(2, 0) == 3 * groups
    assert (trained[1], trained[3]) == (12, 12)
    metrics = {line["step"]: line for line in lines_of(result.folder / "metrics.jsonl")}
    assert metrics[2]["reward.dropped_groups"] == 4 - groups
    assert "reward.dropped_groups" not in metrics[3]
    prompts = [tuple(pair) for line in lines_of(result.folder / "ledger.jsonl") for pair in line["prompts"]]
    assert (0, 4) in prompts
    assert (8, 12) in prompts


def test_drop_of_a_generators_prompts(tmp_path: Path) -> None:
    result = run_fakes(plan_of(ASKED, "drop"), tmp_path, session(Withholding(once("run actor_infer.generate", 2), 6)))
    trained = {line["step"]: line["samples"] for line in lines_of(result.folder / "ledger.jsonl")}
    assert trained == {1: 12, 2: 6, 3: 12}


def test_what_lacks_a_token_is_told_with_its_channels() -> None:
    """At the start only the data set has all that it needs; the weights of step 1 lie there already."""
    stage = stage_plan(timed(SCORED, None), split(timed(SCORED, None)), RUN)
    executor = Executor(stage.programs, 3)
    sources = {c.id: c.source for c in stage.programs.channels}
    lacking = {f.instruction.id: {sources[c] for c in channels} for f, channels in executor.lacking()}
    assert lacking["run advantage.estimate"] == {"run reward.score", "run actor_infer.generate"}
    assert "run data.train" not in lacking
    (data,) = (f for f in executor.ready() if f.instruction.id == "run data.train")
    executor.start(data)
    executor.complete(data)
    after = {f.instruction.id for f, _ in executor.lacking()}
    assert "run data.train" not in after
    assert "run advantage.estimate" in after


def test_a_wait_counts_from_when_both_ends_are_there() -> None:
    stage = stage_plan(timed(SCORED, None, 10.0))
    waits = Waits(stage)
    by_id = {i.id: i for i in stage.programs.instructions}
    (channel,) = (c.id for c in stage.programs.channels if c.edge == SCORED)
    lacking = [(Firing(instruction=by_id["run advantage.estimate"], step=1), [channel])]
    flying = {("run reward.score", 1): Work(Firing(instruction=by_id["run reward.score"], step=1))}
    assert waits.overdue(0.0, lacking, {}) is None
    assert waits.overdue(1000.0, lacking, {}) is None  # the other end waits itself
    assert waits.overdue(1001.0, lacking, flying) is None
    assert waits.overdue(1011.0, lacking, flying) is None
    assert waits.overdue(1011.5, [], flying) is None  # the receiver is elsewhere: the wait is over
    assert waits.overdue(1012.0, lacking, flying) is None
    assert waits.overdue(1022.5, lacking, flying) is not None
    assert waits.overdue(1023.0, lacking, flying) is None  # and counts anew
    idle = [(replace_idle(lacking[0][0]), [channel])]
    assert all(waits.overdue(now, idle, flying) is None for now in (2000.0, 3000.0))


def replace_idle(firing: Firing) -> Firing:
    return structs.replace(firing, idle=True)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_whole_groups_are_those_of_which_nothing_is_missing(sizes: list[int], data: st.DataObject) -> None:
    ids = [(p << SAMPLE_ID_BITS) + s for p, size in enumerate(sizes) for s in range(size)]
    there = [i for i in ids if data.draw(st.booleans())]
    cut = data.draw(st.integers(0, len(there)))
    parts = [
        Part(None, np.asarray(rows, dtype=np.int64), np.asarray(rows, dtype=np.int64) >> SAMPLE_ID_BITS)
        for rows in (there[:cut], there[cut:])
    ]
    op = next(op for op in grpo_graph().ops if op.id == "reward.score")
    source = Instruction(id="run reward.score", kind=InstructionKind.RUN, pool="host", role="reward")
    work = Work(Firing(instruction=source, step=1), rank_ids=(np.asarray(ids[::2]), np.asarray(ids[1::2])))
    work = replace(work, rank_ids=tuple(part.astype(np.int64) for part in work.rank_ids or ()))
    kept, dropped = whole_groups(op, work, parts)
    broken = {i >> SAMPLE_ID_BITS for i in set(ids) - set(there)}
    assert dropped == len(broken)
    assert sorted(i for part in kept for i in part.ids.tolist()) == [
        i for i in there if i >> SAMPLE_ID_BITS not in broken
    ]
    assert all((part.ids >> SAMPLE_ID_BITS).tolist() == part.prompt_ids.tolist() for part in kept)


def test_no_rows_have_the_columns_of_the_op() -> None:
    op = make_op("reward.score", Granularity.SAMPLE, reads("x", "tokens"), ("rewards", "tokens", "response"))
    batch = no_rows(op)
    assert len(batch) == 0
    assert batch.array("rewards").dtype == np.float32
    assert isinstance(batch.columns["tokens"], Ragged)
    assert batch.objects("response") == ()
    assert {field.name for field in op.outputs} == set(batch.columns) <= set(FIELDS)


@pytest.mark.parametrize(
    ("edge", "policy", "takes", "allowed"),
    [
        (SCORED, None, 1, True),
        (SCORED, "retry", 1, True),
        (SCORED, "drop", 1, True),
        (SYNC, "abort", 1, True),
        (SYNC, "retry", 1, False),
        (SYNC, "drop", 1, False),
        ("data.train -> actor_infer.generate", "retry", 1, True),
        ("data.train -> actor_infer.generate", "drop", 1, False),
        (ASKED, "drop", 1, True),
        (ASKED, "drop", 3, False),
        (ASKED, "retry", 3, False),
    ],
)
def test_what_can_be(edge: str, policy: str | None, takes: int, allowed: bool) -> None:
    graph = timed(edge, policy)
    graph = structs.replace(graph, schedule=structs.replace(graph.schedule, takes=takes))
    found = list(refused(stage_plan(graph, split(graph), RUN)))
    assert (not found) is allowed


@pytest.mark.parametrize("policy", ["retry", "drop"])
def test_episodes_may_be_played_again_and_not_given_up_in_part(tmp_path: Path, policy: str) -> None:
    edge = "actor_infer.generate -> advantage.estimate"
    waits = f"- {{edge: {edge}, timeout_seconds: 5, on_timeout: {policy}}}"
    (tmp_path / "flow.yaml").write_text(LAKE.replace(f"- {edge}", waits))
    (stage,) = compile_spec(load(tmp_path / "flow.yaml")).stages
    assert [reason.split(",")[0] for _, _, reason in refused(stage)] == ["rows of episodes"] * (policy == "drop")
