"""The Ray launcher: one actor for each rank of each role, placed by the plan's pools; rows travel by reference.

The driver's process holds references and metadata. It unpacks no rows: consumers are given references, the few rows of
samples.jsonl are picked out by an actor, weights go from rank to rank (ray_weights.py). Objects under about 100 kB
pass through the driver as bytes, which is Ray's way; larger ones stay in the shared memory of the host that made them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import backend_of
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import MOVES, Instruction, InstructionKind
from flowrl.runtime.faults import span_of
from flowrl.runtime.launchers.contract import BoundInput, Completion, Part, Work
from flowrl.runtime.launchers.ray_actor import Address, Clerk, Outcome, RankActor, Slot
from flowrl.runtime.launchers.ray_cluster import (
    PoolGroup,
    actor_options,
    connect,
    import_ray,
    is_alive,
    on_cpu,
    release,
    reserve,
    signals_through,
)
from flowrl.runtime.launchers.ray_weights import Ranks, WeightEdges
from flowrl.runtime.metrics import merge
from flowrl.runtime.records import READS
from flowrl.runtime.setups import RoleSetup, call_of, is_data_call, located, model_folders, role_setups, take_of
from flowrl.runtime.worker import ENDS, MakeRank

START_SECONDS = 600.0
"""Most that ranks may take to load models and engines."""
CLOSE_SECONDS = 3.0
"""What ranks get to end by themselves before their processes are killed."""
NAMED = 4
"""Most silent ranks of a role that are named."""
KILL_SECONDS = 2.0
"""What Ray gets to kill them."""
PEEK_SECONDS = 60.0


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
    running Ray cluster. `make_rank` is the registry's unless a test gives another (it is shipped by cloudpickle)."""

    def __init__(self, threads: int = 1, address: str | None = None, make_rank: MakeRank | None = None) -> None:
        self._threads = threads
        self._address = address
        self._make_rank = make_rank
        self._stage: StagePlan | None = None
        self._owns_ray = False
        self._groups: dict[str, PoolGroup] = {}
        self._ranks: dict[str, Ranks] = {}
        self._actors: list[Any] = []
        self._processes: list[int] = []
        """Of the actors on this host."""
        self._clerk: Any = None
        self._edges: WeightEdges | None = None
        self._flights: dict[Any, _Flight] = {}
        self._failed = False

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
        return [done for reference in ready if (done := self._take(reference)) is not None]

    def peek(self, part: Part, fields: Sequence[str], ids: Sequence[int]) -> Batch:
        import ray

        few: Batch = ray.get(self._clerk.peek.remote(part.handle, tuple(fields), tuple(ids)), timeout=PEEK_SECONDS)
        return few

    def close(self) -> None:
        import ray

        self._flights = {}
        actors, self._actors = self._actors, []
        if not ray.is_initialized():
            return
        with suppress(Exception):  # what is dead already cannot be told to close
            self._end([*actors, *([] if self._clerk is None else [self._clerk])])
        self._kill_processes()
        if self._edges is not None:
            self._edges.close()
        release(self._groups)
        self._ranks, self._edges, self._clerk = {}, None, None
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False

    def _start(self, plan: Plan, stage: StagePlan, run_folder: Path, restore: Path | None) -> None:
        self._stage = stage
        folders = model_folders(plan, stage, run_folder)
        self._owns_ray = connect(plan, stage.pools, self._address)
        self._groups = reserve(plan, stage.pools)
        devices = sum(len(pool.devices) for pool in stage.pools if on_cpu(plan, pool))
        gpus = {pool.name for pool in stage.pools if pool.devices and not on_cpu(plan, pool)}
        setups = [
            located(setup, "cuda" if setup.pool in gpus else "cpu")
            for setup in role_setups(plan, stage, folders, max(1, self._threads // max(1, devices)))
        ]
        for setup in setups:
            self._make_actors(setup, sum(other.pool == setup.pool for other in setups))
        self._clerk = _remote(Clerk, actor_options(None, 0, 1))
        places = self._places()
        taking_turns = {i.pool for i in stage.programs.instructions if i.kind in MOVES} & gpus
        waiting: list[Any] = []
        for setup in setups:
            started = self._start_ranks(setup, places[setup.role], restore)
            if setup.pool in taking_turns:
                self._settle(setup, started)
            else:
                waiting += started
        together = [setup for setup in setups if setup.pool not in taking_turns]
        self._ask(waiting, [(setup.role, one.rank) for setup in together for one in setup.ranks])
        self._edges = WeightEdges(stage, self._ranks, self._ask)
        if restore is not None:
            self._edges.restore(restore.resolve(), self._ask)

    def _make_actors(self, setup: RoleSetup, roles: int) -> None:
        group = self._groups.get(setup.pool)
        actors = tuple(
            _remote(RankActor, actor_options(group, one.rank, roles), one.rank, _environment(one))
            for one in setup.ranks
        )
        self._actors += actors
        self._ranks[setup.role] = Ranks(setup.role, actors, ())

    def _places(self) -> dict[str, list[Address]]:
        """Where every actor came up; all come up at once."""
        import ray

        asked = {role: [actor.address.remote() for actor in ranks.actors] for role, ranks in self._ranks.items()}
        places = {
            role: [self._get(reference, role, rank) for rank, reference in enumerate(refs)]
            for role, refs in asked.items()
        }
        here = ray.get_runtime_context().get_node_id()
        for role, found in places.items():
            self._ranks[role] = replace(self._ranks[role], nodes=tuple(place.node for place in found))
            self._processes += [place.pid for place in found if place.node == here]
        return places

    def _start_ranks(self, setup: RoleSetup, places: list[Address], restore: Path | None) -> list[Any]:
        """Rank 0 serves the store of the role's ranks, on this host's own address if none is elsewhere."""
        one_host = len({place.node for place in places}) == 1
        host = "127.0.0.1" if one_host else places[0].host
        started: list[Any] = []
        for actor, rank in zip(self._ranks[setup.role].actors, setup.ranks, strict=True):
            mine = replace(rank, store_host=host, store_port=places[0].port if rank.world_size > 1 else None)
            started.append(actor.start.remote(mine, self._make_rank, None if restore is None else restore.resolve()))
        return started

    def _settle(self, setup: RoleSetup, started: list[Any]) -> None:
        """Where roles take turns on a GPU, each starts alone and leaves, if it does, before the next one starts."""
        assert self._stage is not None
        self._ask(started, [(setup.role, one.rank) for one in setup.ranks])
        if any(i.role == setup.role and i.kind in MOVES for i in self._stage.programs.instructions):
            self._ask([actor.move.remote(InstructionKind.OFFLOAD) for actor in self._ranks[setup.role].actors])

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
        assert self._stage is not None
        actors = self._ranks[work.firing.instruction.role].actors
        if is_data_call(self._stage, work):
            outcome, rows = actors[0].rows.options(num_returns=2).remote(work.prompt_start, work.prompt_count)
            flight.pending[outcome], flight.rows[0] = 0, rows
            return
        call, kind = call_of(self._stage, work), work.firing.instruction.kind
        for rank, actor in enumerate(actors):
            if kind is InstructionKind.TAKE:
                outcome, flight.rows[rank] = actor.take.options(num_returns=2).remote(*take_of(work))
                flight.pending[outcome] = rank
                continue
            ids = None if work.rank_ids is None else work.rank_ids[rank]
            slots, batches = _slots(work.inputs, ids)
            if kind is InstructionKind.OPEN:
                flight.pending[actor.open.remote(call, slots, ids, *batches)] = rank
                continue
            outcome, rows = actor.run.options(num_returns=2).remote(call, slots, ids, *batches)
            flight.pending[outcome], flight.rows[rank] = rank, rows

    def _calls(self, work: Work, instruction: Instruction) -> list[Any]:
        ranks, edges, edge = self._ranks[instruction.role], self._edges, instruction.edge or ""
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
            outcome = self._get(reference, role, rank, flight.work.firing.instruction)
        except FlowError as error:
            outcome = Outcome(flight.began_seconds, time.monotonic() - flight.began_seconds, error=error)
        flight.outcomes[rank] = outcome
        if outcome.error is not None:
            self._failed = True
            self._flights = {ref: other for ref, other in self._flights.items() if other is not flight}
            return Completion(flight.work, (), {}, outcome.start_seconds, outcome.seconds, outcome.error)
        return None if flight.pending else _complete(flight)

    def _ask(self, references: Sequence[Any], ranks: Sequence[tuple[str, int]] = ()) -> list[Outcome]:
        """The outcomes, as soon as all are there; the first error is raised at once, whoever else still waits. `ranks`:
        role and rank of each, to be told by."""
        import ray

        whose = dict(zip(references, ranks, strict=False))
        waiting, deadline = list(references), time.monotonic() + START_SECONDS
        found: dict[Any, Outcome] = {}
        while waiting:
            with signals_through():
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
            for reference in ready:
                found[reference] = self._get(reference, *whose.get(reference, ("", None)))
                error = found[reference].error
                if error is not None:
                    raise error
            if waiting and time.monotonic() > deadline:
                raise self._silent([whose.get(reference, ("", None)) for reference in waiting])
        return [found[reference] for reference in references]

    def _get(self, reference: Any, role: str, rank: int | None = None, instruction: Instruction | None = None) -> Any:
        """The value of a reference that is ready, or FlowError FR0955 for the end of its process."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            with signals_through():
                return ray.get(reference, timeout=START_SECONDS)
        except GetTimeoutError as error:
            raise self._silent([(role, rank)]) from error
        except RayError as error:
            doing = "its start" if instruction is None else f"`{instruction.id}`"
            span = self._span(role) if instruction is None or self._stage is None else span_of(self._stage, instruction)
            who, reason = _who(role, rank), _reason(error)
            raise FlowError(diagnose("FR0955", span, who=who, doing=doing, reason=reason)) from error

    def _silent(self, ranks: Sequence[tuple[str, int | None]]) -> FlowError:
        by_role: dict[str, list[int | None]] = {}
        for role, rank in ranks:
            by_role.setdefault(role, []).append(rank)
        who = ", ".join(_who_of(role, found) for role, found in by_role.items())
        return FlowError(diagnose("FR0957", self._span(ranks[0][0]), who=who, seconds=f"{START_SECONDS:,g}"))

    def _span(self, role: str) -> Span | None:
        """Where the flow has the role, if one is known."""
        roles = () if self._stage is None else self._stage.graph.roles
        return next((each.span for each in roles if each.name == role), None)

    def _end(self, actors: Sequence[Any]) -> None:
        """Let ranks close what they hold, unless one has failed and others may hang in what they had in common."""
        import ray

        if not self._failed:
            closing = [actor.close.remote() for actor in actors]
            ray.wait(closing, num_returns=max(1, len(closing)), timeout=CLOSE_SECONDS)
        for actor in actors:
            ray.kill(actor, no_restart=True)

    def _kill_processes(self) -> None:
        """A stopped process does not hear Ray; the kernel it obeys."""
        processes, self._processes = self._processes, []
        deadline = time.monotonic() + KILL_SECONDS
        while processes and time.monotonic() < deadline:
            processes = [process for process in processes if is_alive(process)]
            time.sleep(0.02)
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _who(role: str, rank: int | None) -> str:
    return (f"`{role}`" if role else "a rank") + ("" if rank is None else f", rank {rank}")


def _who_of(role: str, ranks: Sequence[int | None]) -> str:
    """Several ranks of a role; too many of them are counted."""
    if len(ranks) == 1:
        return _who(role, ranks[0])
    if not role:
        return f"{len(ranks)} ranks"
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"`{role}`, ranks {', '.join(str(rank) for rank in ranks[:NAMED])}{more}"


def _remote(actor: type, options: dict[str, Any], *arguments: Any) -> Any:
    return import_ray().remote(actor).options(**options).remote(*arguments)


def _environment(setup: RankSetup) -> dict[str, str]:
    """Environment variables of a rank's process: what must be set before its libraries are loaded."""
    shared = {"OMP_NUM_THREADS": str(setup.threads), "TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
    if setup.role.model is None or backend_of(setup.role) != "vllm":
        return shared
    from flowrl.backends.generators.vllm_settings import environment

    return shared | environment(setup.device, setup.threads)


def _slots(inputs: Sequence[BoundInput], ids: IntArray | None) -> tuple[tuple[Slot, ...], list[Any]]:
    """Slots and the references they take their rows from, each once, only those that have some of the rows."""
    references: dict[Any, int] = {}
    slots: list[Slot] = []
    for bound in inputs:
        parts = bound.record.parts
        if ids is not None and not bound.by_prompt:
            parts = tuple(part for part in parts if np.isin(part.ids, ids).any()) or parts[:1]
        places = tuple(references.setdefault(part.handle, len(references)) for part in parts)
        slots.append(Slot(bound.slot, bound.field, places, bound.by_prompt))
    return tuple(slots), list(references)


def _complete(flight: _Flight) -> Completion:
    outcomes = [flight.outcomes[rank] for rank in sorted(flight.outcomes)]
    made = [(flight.outcomes[rank].part, rows) for rank, rows in sorted(flight.rows.items())]
    parts = tuple(replace(part, handle=rows) for part, rows in made if part is not None)
    start = min(outcome.start_seconds for outcome in outcomes)
    end = max(outcome.start_seconds + outcome.seconds for outcome in outcomes)
    metrics = merge([outcome.metrics for outcome in outcomes])
    return Completion(flight.work, parts, metrics, start, end - start, None)


def _reason(error: Exception) -> str:
    """The line of Ray's message that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = [line for line in lines if line.startswith("Worker exit detail:")]
    return (detail or lines or [type(error).__name__])[0]
