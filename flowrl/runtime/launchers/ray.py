"""The Ray launcher: one actor for each rank of each role, placed by the plan's pools; rows travel by reference.

The driver's process holds references and metadata. It unpacks no rows: consumers are given references, the few rows of
samples.jsonl are picked out by an actor, weights go from rank to rank (ray_weights.py). Objects under 8 KiB
pass through the driver as bytes, which is Ray's way; larger ones stay in the shared memory of the host that made them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from flowrl.backends.batch import Batch
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import MOVES, Instruction, InstructionKind
from flowrl.runtime.interact import Meetings
from flowrl.runtime.launchers.contract import Completion, LostRank, Part, RankLostError, Work
from flowrl.runtime.launchers.ray_actor import Outcome
from flowrl.runtime.launchers.ray_cluster import PoolGroup, connect, on_cpu, release, reserve, signals_through
from flowrl.runtime.launchers.ray_crew import Crew
from flowrl.runtime.launchers.ray_flights import Flight, slots_of
from flowrl.runtime.launchers.ray_meetings import Meeting
from flowrl.runtime.launchers.ray_pulse import HUNG_SECONDS
from flowrl.runtime.launchers.ray_voices import VoiceError
from flowrl.runtime.launchers.ray_waits import Waits
from flowrl.runtime.launchers.ray_weights import WeightEdges
from flowrl.runtime.records import READS
from flowrl.runtime.setups import call_of, is_data_call, located, model_folders, role_setups, take_of
from flowrl.runtime.worker import ENDS, MakeRank, part_of

PEEK_SECONDS = 60.0
LISTEN_SECONDS = 0.5
"""How often pulses are listened to: instructions may complete much faster."""


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
        self._flights: dict[Any, Flight] = {}
        """By reference of an outcome that is to come."""
        self._meetings: dict[Flight, Meeting] = {}
        """Of the flights that are members of one, which goes on."""
        self._gathering: Meetings | None = None
        self._met = 0
        """Meetings so far."""
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
        assert self._gathering is not None
        members = self._gathering.add(work)
        if members is None:
            flight = self._fly(work)
            self._flights |= dict.fromkeys(flight.pending, flight)
        elif members:
            self._met += 1
            meeting = Meeting(self._stage, members, self._met, self._actors_of, time.monotonic())
            self._meetings |= dict.fromkeys(meeting.flights, meeting)
            self._flights |= meeting.pending

    def poll(self, timeout_seconds: float) -> Sequence[Completion]:
        import ray

        if not self._flights:
            return ()
        with signals_through():
            ready, _ = ray.wait(list(self._flights), num_returns=1, timeout=timeout_seconds)
            if ready:
                ready, _ = ray.wait(list(self._flights), num_returns=len(self._flights), timeout=0)
        return [*(done for reference in ready for done in self._take(reference)), *self._hung()]

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
        made = () if flight is None else flight.parts()
        if flight is not None:
            self._drop(flight)
        return made or (part_of(nothing, ray.put(nothing)),)

    def revive(self, role: str) -> None:
        crew, edges = self._crew_made, self._edges
        assert edges is not None
        for flight in [each for each in self._flying() if each.role == role]:
            self._drop(flight)
        crew.make_anew(role)
        edges.join(crew.ranks_of(role), self._waits.ask)
        self._failed = False

    def rewind(self, restore: Path | None, anew: Collection[str]) -> None:
        crew, edges = self._crew_made, self._edges
        assert edges is not None
        assert self._started is not None
        self._forget()
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

        self._forget()
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
        self._started, self._waits.stage = (plan, stage, run_folder), stage
        self._forget()
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

    @property
    def _stage(self) -> StagePlan:
        assert self._started is not None
        return self._started[1]

    def _actors_of(self, role: str) -> Sequence[Any]:
        return self._crew_made.ranks_of(role).actors

    def _flying(self) -> list[Flight]:
        """Everything under way: of a meeting all members."""
        return list(dict.fromkeys([*self._flights.values(), *self._meetings]))

    def _forget(self) -> None:
        """What is under way, or waits for the others of its interaction."""
        self._flights, self._meetings = {}, {}
        self._gathering = None if self._started is None else Meetings(self._stage)

    def _hung(self) -> list[Completion]:
        """Firings of ranks that have stopped answering, one for each of their roles."""
        now = time.monotonic()
        if now - self._listened < LISTEN_SECONDS:
            return []
        self._listened = now
        flying = {flight.role: flight for flight in self._flying()}
        lost = {each.role: each for each in self._crew_made.silent(flying, now)} if flying else {}
        return [self._lose(flying[role], each) for role, each in lost.items()]

    def _lose(self, flight: Flight, lost: LostRank) -> Completion:
        self._failed = True
        error = self._waits.dead(lost, flight.work.firing.instruction)
        return Completion(flight.work, start_seconds=flight.began_seconds, error=error, lost=lost)

    def _fly(self, work: Work) -> Flight:
        instruction = work.firing.instruction
        flight = Flight(work, began_seconds=time.monotonic())
        if instruction.kind in READS:
            self._run(work, flight)
            return flight
        for rank, reference in enumerate(self._calls(work, instruction)):
            flight.pending[reference] = rank
        return flight

    def _run(self, work: Work, flight: Flight) -> None:
        stage, actors = self._stage, self._crew_made.ranks_of(work.firing.instruction.role).actors
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
            slots, batches = slots_of(work.inputs, ids)
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

    def _take(self, reference: Any) -> list[Completion]:
        """What an outcome completes: the first error of a firing completes it, else its last rank; members of a meeting
        complete together."""
        flight = self._flights.pop(reference, None)
        if flight is None:
            return []
        rank = flight.pending.pop(reference)
        try:
            outcome = self._waits.get(reference, flight.role, rank, flight.work.firing.instruction)
        except RankLostError as error:
            self._drop(flight)
            return [self._lose(flight, error.lost)]
        except FlowError as error:
            outcome = Outcome(flight.began_seconds, time.monotonic() - flight.began_seconds, error=error)
        flight.outcomes[rank] = outcome
        if isinstance(outcome.error, VoiceError):
            return [self._failed_voice(flight, outcome.error)]
        if outcome.error is not None:
            self._failed = True
            self._drop(flight)
            return [Completion(flight.work, (), {}, outcome.start_seconds, outcome.seconds, outcome.error)]
        if flight.pending:
            return []
        return [flight.completion()] if flight not in self._meetings else self._go_on(self._meetings[flight])

    def _go_on(self, meeting: Meeting) -> list[Completion]:
        done = meeting.go_on()
        self._flights |= meeting.pending
        if done:
            self._meetings = {flight: each for flight, each in self._meetings.items() if each is not meeting}
        return done

    def _failed_voice(self, world: Flight, told: VoiceError) -> Completion:
        """A generator has failed or is gone, as the environment has found while it talked with it."""
        flight = next(each for each in self._meetings[world].flights if each.role == told.agent)
        self._drop(world)
        if told.gone:
            return self._lose(flight, self._waits.lost(told.agent, told.voice, told.error))
        self._failed = True
        return Completion(flight.work, start_seconds=flight.began_seconds, error=told.error)

    def _drop(self, flight: Flight) -> None:
        """Let go of a firing; with a member of a meeting, of all of it."""
        gone = self._meetings[flight].flights if flight in self._meetings else (flight,)
        self._flights = {ref: other for ref, other in self._flights.items() if other not in gone}
        self._meetings = {other: meeting for other, meeting in self._meetings.items() if other not in gone}
