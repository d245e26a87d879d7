"""The Ray launcher: one actor for each rank of each role, placed by the plan's pools; rows travel by reference.

The driver's process holds references and metadata. It unpacks no rows: consumers are given references, the few rows of
samples.jsonl are picked out by an actor, weights go from rank to rank (ray_weights.py). Objects under 8 KiB
pass through the driver as bytes, which is Ray's way; larger ones stay in the shared memory of the host that made them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, IntArray
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import MOVES, Instruction, InstructionKind
from flowrl.runtime.launchers.contract import BoundInput, Completion, LostRank, Part, RankLostError, Work
from flowrl.runtime.launchers.ray_actor import Outcome, Slot
from flowrl.runtime.launchers.ray_cluster import PoolGroup, connect, on_cpu, release, reserve, signals_through
from flowrl.runtime.launchers.ray_crew import Crew
from flowrl.runtime.launchers.ray_pulse import HUNG_SECONDS
from flowrl.runtime.launchers.ray_waits import Waits
from flowrl.runtime.launchers.ray_weights import WeightEdges
from flowrl.runtime.metrics import merge
from flowrl.runtime.records import READS
from flowrl.runtime.rows import generators_of_steps
from flowrl.runtime.setups import call_of, is_data_call, located, model_folders, role_setups, take_of
from flowrl.runtime.worker import ENDS, MakeRank, part_of

PEEK_SECONDS = 60.0
LISTEN_SECONDS = 0.5
"""How often pulses are listened to: instructions may complete much faster."""


@dataclass(slots=True)
class _Flight:
    """A firing under way: outcomes to come, by reference, and what has come."""

    work: Work
    pending: dict[Any, int]
    """Reference of an outcome → its rank."""
    rows: dict[int, Any] = field(default_factory=dict[int, Any])
    """Rank → reference of its rows."""
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    began_seconds: float = 0.0


class RayLauncher:
    """The Launcher contract on Ray actors. `threads` is what this host has to share out among CPU ranks; `address` a
    running Ray cluster. `make_rank` is the registry's unless a test gives another (it is shipped by cloudpickle). A
    rank without a pulse for `hung_seconds` counts as dead (ray_pulse.py)."""

    def __init__(
        self,
        threads: int = 1,
        address: str | None = None,
        make_rank: MakeRank | None = None,
        hung_seconds: float = HUNG_SECONDS,
    ) -> None:
        self._threads = threads
        self._address = address
        self._make_rank = make_rank
        self._hung_seconds = hung_seconds
        self._waits = Waits()
        self._started: tuple[Plan, StagePlan, Path] | None = None
        self._owns_ray = False
        self._groups: dict[str, PoolGroup] = {}
        self._crew: Crew | None = None
        self._edges: WeightEdges | None = None
        self._flights: dict[Any, _Flight] = {}
        self._failed = False
        self._listened = 0.0

    def start(self, plan: Plan, stage: StagePlan, run_folder: Path, restore: Path | None) -> None:
        try:
            self._start(plan, stage, run_folder, restore)
        except BaseException:
            self._failed = True
            self.close()
            raise

    def submit(self, work: Work) -> None:
        flight = self._fly(work)
        self._flights |= dict.fromkeys(flight.pending, flight)

    def poll(self, timeout_seconds: float) -> Sequence[Completion]:
        import ray

        if not self._flights:
            return ()
        with signals_through():
            ready, _ = ray.wait(list(self._flights), num_returns=1, timeout=timeout_seconds)
            if ready:
                ready, _ = ray.wait(list(self._flights), num_returns=len(self._flights), timeout=0)
        found = [done for reference in ready if (done := self._take(reference)) is not None]
        return [*found, *self._hung()]

    def peek(self, part: Part, fields: Sequence[str], ids: Sequence[int]) -> Batch:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        crew, wanted = self._crew_made, (part.handle, tuple(fields), tuple(ids))
        try:
            few: Batch = ray.get(crew.clerk.peek.remote(*wanted), timeout=PEEK_SECONDS)
        except (GetTimeoutError, RayActorError):  # it has died, or stopped: it holds nothing, another one will do
            crew.make_clerk()
            few = self._waits.get(crew.clerk.peek.remote(*wanted), "")
        return few

    def give_up(self, work: Work, nothing: Batch) -> Sequence[Part]:
        import ray

        flight = next((each for each in self._flights.values() if each.work.firing == work.firing), None)
        self._flights = {ref: each for ref, each in self._flights.items() if each is not flight}
        made = () if flight is None else _parts(flight)
        return made or (part_of(nothing, ray.put(nothing)),)

    def revive(self, role: str) -> None:
        crew, edges = self._crew_made, self._edges
        assert edges is not None
        self._flights = {ref: f for ref, f in self._flights.items() if f.work.firing.instruction.role != role}
        crew.make_anew(role)
        edges.join(crew.ranks_of(role), self._waits.ask)
        self._failed = False

    def rewind(self, restore: Path | None, anew: Collection[str]) -> None:
        crew, edges = self._crew_made, self._edges
        assert edges is not None
        assert self._started is not None
        self._flights = {}
        if crew.has_lost_hosts():
            self._failed = True
            self.close()
            self._start(*self._started, restore)
        else:
            edges.close()
            crew.rewind(restore, anew)
            self._open_edges(self._started[1], restore)
        self._failed = False

    def close(self) -> None:
        import ray

        self._flights = {}
        if not ray.is_initialized():
            return
        if self._crew is not None:
            self._crew.end(self._failed)
        if self._edges is not None:
            self._edges.close()
        release(self._groups)
        self._crew = None
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False

    def processes(self, role: str) -> tuple[int, ...]:
        """Process ids of the role's ranks, each on its host."""
        return self._crew_made.processes(role)

    def _start(self, plan: Plan, stage: StagePlan, run_folder: Path, restore: Path | None) -> None:
        _require_no_episodes(stage)
        self._started, self._waits.stage = (plan, stage, run_folder), stage
        folders = model_folders(plan, stage, run_folder)
        self._owns_ray = connect(plan, stage.pools, self._address)
        self._groups = reserve(plan, stage.pools)
        devices = sum(len(pool.devices) for pool in stage.pools if on_cpu(plan, pool))
        gpus = {pool.name for pool in stage.pools if pool.devices and not on_cpu(plan, pool)}
        setups = [
            located(setup, "cuda" if setup.pool in gpus else "cpu")
            for setup in role_setups(plan, stage, folders, max(1, self._threads // max(1, devices)))
        ]
        turns = {i.pool for i in stage.programs.instructions if i.kind in MOVES} & gpus
        self._crew = Crew(stage, self._waits, self._groups, turns, self._make_rank, self._hung_seconds)
        self._crew.make(setups, restore)
        self._open_edges(stage, restore)

    def _open_edges(self, stage: StagePlan, restore: Path | None) -> None:
        self._edges = WeightEdges(stage, self._crew_made.ranks, self._waits.ask)
        if restore is not None:
            self._edges.restore(restore.resolve(), self._waits.ask)

    @property
    def _crew_made(self) -> Crew:
        if self._crew is None:
            raise InternalError("the launcher has not started")
        return self._crew

    def _hung(self) -> list[Completion]:
        """Firings of ranks that have stopped answering, one for each of their roles."""
        now = time.monotonic()
        if now - self._listened < LISTEN_SECONDS:
            return []
        self._listened = now
        flying = {f.work.firing.instruction.role: f for f in self._flights.values()}
        lost = {each.role: each for each in self._crew_made.silent(flying, now)} if flying else {}
        return [self._lose(flying[role], each) for role, each in lost.items()]

    def _lose(self, flight: _Flight, lost: LostRank) -> Completion:
        self._failed = True
        error = self._waits.dead(lost, flight.work.firing.instruction)
        return Completion(flight.work, start_seconds=flight.began_seconds, error=error, lost=lost)

    def _fly(self, work: Work) -> _Flight:
        instruction = work.firing.instruction
        flight = _Flight(work, {}, began_seconds=time.monotonic())
        if instruction.kind in READS:
            self._run(work, flight)
            return flight
        for rank, reference in enumerate(self._calls(work, instruction)):
            flight.pending[reference] = rank
        return flight

    def _run(self, work: Work, flight: _Flight) -> None:
        assert self._started is not None
        stage, actors = self._started[1], self._crew_made.ranks_of(work.firing.instruction.role).actors
        if is_data_call(stage, work):
            outcome, rows = actors[0].rows.options(num_returns=2).remote(work.prompt_start, work.prompt_count)
            flight.pending[outcome], flight.rows[0] = 0, rows
            return
        call, kind = call_of(stage, work), work.firing.instruction.kind
        for rank, actor in enumerate(actors):
            if kind is InstructionKind.TAKE:
                outcome, flight.rows[rank] = actor.take.options(num_returns=2).remote(*take_of(work, rank))
                flight.pending[outcome] = rank
                continue
            ids = None if work.rank_ids is None else work.rank_ids[rank]
            slots, batches = _slots(work.inputs, ids)
            if kind is InstructionKind.OPEN:
                flight.pending[actor.open.remote(call, slots, ids, work.given, *batches)] = rank
                continue
            outcome, rows = actor.run.options(num_returns=2).remote(call, slots, ids, *batches)
            flight.pending[outcome], flight.rows[rank] = rank, rows

    def _calls(self, work: Work, instruction: Instruction) -> list[Any]:
        ranks, edges, edge = self._crew_made.ranks_of(instruction.role), self._edges, instruction.edge or ""
        assert edges is not None
        if instruction.kind is InstructionKind.SEND_WEIGHTS:
            return edges.send(edge, work.version)
        if instruction.kind is InstructionKind.RECEIVE_WEIGHTS:
            return edges.receive(edge, work.version)
        if instruction.kind in (*MOVES, *ENDS):
            return [actor.move.remote(instruction.kind) for actor in ranks.actors]
        if work.folder is None:
            raise InternalError(f"`{instruction.id}` has no folder")
        folder = work.folder.resolve()
        return [*(actor.save.remote(folder) for actor in ranks.actors), *edges.keep(folder, work.keep_weights)]

    def _take(self, reference: Any) -> Completion | None:
        """What an outcome completes, if anything: the first error of a firing completes it, else its last rank."""
        flight = self._flights.pop(reference, None)
        if flight is None:
            return None
        rank = flight.pending.pop(reference)
        role = flight.work.firing.instruction.role
        try:
            outcome = self._waits.get(reference, role, rank, flight.work.firing.instruction)
        except RankLostError as error:
            self._drop(flight)
            return self._lose(flight, error.lost)
        except FlowError as error:
            outcome = Outcome(flight.began_seconds, time.monotonic() - flight.began_seconds, error=error)
        flight.outcomes[rank] = outcome
        if outcome.error is not None:
            self._failed = True
            self._drop(flight)
            return Completion(flight.work, (), {}, outcome.start_seconds, outcome.seconds, outcome.error)
        return None if flight.pending else _complete(flight)

    def _drop(self, flight: _Flight) -> None:
        self._flights = {ref: other for ref, other in self._flights.items() if other is not flight}


def _require_no_episodes(stage: StagePlan) -> None:
    """FR0863 for an interaction: its members would have to talk from actor to actor."""
    for step, generators in generators_of_steps(stage.graph).items():
        role = stage.graph.role(stage.graph.op(step).role)
        names = ", ".join(f"`{each}`" for each in generators)
        raise FlowError(diagnose("FR0863", role.span, env=role.name, generators=names))


def _slots(inputs: Sequence[BoundInput], ids: IntArray | None) -> tuple[tuple[Slot, ...], list[Any]]:
    """Slots and the references they take their rows from, each once, only those that have some of the rows."""
    references: dict[Any, int] = {}
    slots: list[Slot] = []
    for bound in inputs:
        parts = bound.record.parts
        if ids is not None and not bound.by_prompt and len(parts) > 1:
            parts = tuple(part for part in parts if np.isin(part.ids, ids).any()) or parts[:1]
        places = tuple(references.setdefault(part.handle, len(references)) for part in parts)
        slots.append(Slot(bound.slot, bound.field, places, bound.by_prompt))
    return tuple(slots), list(references)


def _complete(flight: _Flight) -> Completion:
    outcomes = [flight.outcomes[rank] for rank in sorted(flight.outcomes)]
    start = min(outcome.start_seconds for outcome in outcomes)
    end = max(outcome.start_seconds + outcome.seconds for outcome in outcomes)
    metrics = merge([outcome.metrics for outcome in outcomes])
    return Completion(flight.work, _parts(flight), metrics, start, end - start, None)


def _parts(flight: _Flight) -> tuple[Part, ...]:
    """What the ranks that are done have made."""
    made = [(flight.outcomes[rank].part, rows) for rank, rows in sorted(flight.rows.items()) if rank in flight.outcomes]
    return tuple(replace(part, handle=rows) for part, rows in made if part is not None)
