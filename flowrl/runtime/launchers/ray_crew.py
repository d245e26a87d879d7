"""The crew of a stage on Ray: an actor for each rank of each role, made, started, killed and made anew where it was.

Knows pools, processes and their pulses; no firings, no rows, no weights.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import backend_of
from flowrl.plan.plan import StagePlan
from flowrl.program.program import MOVES, InstructionKind
from flowrl.runtime.launchers.contract import LostRank
from flowrl.runtime.launchers.ray_actor import Address, Clerk, RankActor
from flowrl.runtime.launchers.ray_cluster import PoolGroup, actor_options, import_ray, is_alive
from flowrl.runtime.launchers.ray_pulse import HUNG_SECONDS, Pulses
from flowrl.runtime.launchers.ray_waits import Waits, dead_nodes
from flowrl.runtime.launchers.ray_weights import Ranks
from flowrl.runtime.recovery import keeps_state
from flowrl.runtime.setups import RoleSetup
from flowrl.runtime.worker import MakeRank

CLOSE_SECONDS = 3.0
"""What ranks get to end by themselves before their processes are killed."""
KILL_SECONDS = 2.0
"""What Ray gets to kill them."""


@dataclass(slots=True)
class _Role:
    setup: RoleSetup
    ranks: Ranks
    places: list[Address] = field(default_factory=list[Address])
    numbers: tuple[int, ...] = ()
    """Of their pulses."""


class Crew:
    """`turns`: pools on GPUs on which roles take turns; a role there starts alone and leaves before the next one."""

    def __init__(
        self,
        stage: StagePlan,
        waits: Waits,
        groups: Mapping[str, PoolGroup],
        turns: Collection[str],
        make_rank: MakeRank | None,
        hung_seconds: float = HUNG_SECONDS,
    ) -> None:
        self._stage, self._waits, self._groups, self._turns = stage, waits, groups, turns
        self._make_rank = make_rank
        self._roles: dict[str, _Role] = {}
        ray = import_ray()
        self._here = str(ray.get_runtime_context().get_node_id())
        self._home = (self._here, str(ray.util.get_node_ip_address()))
        self._pulses = Pulses(hung_seconds)
        waits.silent = lambda roles: self.silent(roles, time.monotonic())
        self.clerk: Any = None

    @property
    def ranks(self) -> dict[str, Ranks]:
        return {role: each.ranks for role, each in self._roles.items()}

    def ranks_of(self, role: str) -> Ranks:
        return self._roles[role].ranks

    def processes(self, role: str) -> tuple[int, ...]:
        """Process ids of the role's ranks."""
        return tuple(place.pid for place in self._roles[role].places)

    def make(self, setups: Sequence[RoleSetup], restore: Path | None) -> None:
        """Make and start every rank."""
        for setup in setups:
            self._make(setup, sum(other.pool == setup.pool for other in setups))
        self.make_clerk()
        self._find(self._roles)
        self._start(self._roles, restore)

    def make_clerk(self) -> None:
        if self.clerk is not None:
            import_ray().kill(self.clerk, no_restart=True)
        self.clerk = _remote(Clerk, actor_options(None, 0, 1))

    def make_anew(self, role: str) -> None:
        """End what is left of the role's ranks and make them again, on the same devices, from their first weights."""
        self._replace([role], None)

    def rewind(self, restore: Path | None, anew: Collection[str]) -> None:
        """As Launcher.rewind. Those that live on forget sessions and weight buffers, and are on or off their devices as
        at the start."""
        gone = {role for role in self._roles if role in anew or keeps_state(self._stage, role) or self._has_lost(role)}
        kept = [role for role in self._roles if role not in gone]
        self._kill(gone)
        asked = {(role, rank): actor.renew.remote(self._first_move(role)) for role, rank, actor in self._actors(kept)}
        self._waits.ask(list(asked.values()), list(asked))
        self._replace([role for role in self._roles if role in gone], restore)

    def silent(self, roles: Collection[str], now: float) -> list[LostRank]:
        """Ranks of `roles` that have no pulse."""
        silent = self._pulses.silent(now)
        reason = f"its process has not answered for {self._pulses.hung_seconds:g} s"
        return [
            LostRank(role, rank, reason)
            for role in sorted(roles)
            for rank, number in enumerate(self._roles[role].numbers)
            if number in silent
        ]

    def has_lost_hosts(self) -> bool:
        dead = dead_nodes()
        return any(place.node in dead for each in self._roles.values() for place in each.places)

    def end(self, failed: bool) -> None:
        """Let ranks close what they hold, unless one has failed and others may hang in what they had in common; then
        end every process."""
        ray = import_ray()
        if not failed:
            with suppress(Exception):  # what is dead already cannot be told to close
                closing = [actor.close.remote() for _, _, actor in self._actors(self._roles)]
                ray.wait(closing, num_returns=max(1, len(closing)), timeout=CLOSE_SECONDS)
        with suppress(Exception):
            if self.clerk is not None:
                ray.kill(self.clerk, no_restart=True)
        self._kill(self._roles)
        self._pulses.close()
        self._roles, self.clerk = {}, None

    def _make(self, setup: RoleSetup, sharing: int) -> None:
        group = self._groups.get(setup.pool)
        made = [(one, *self._pulses.heart()) for one in setup.ranks]
        actors = tuple(
            _remote(RankActor, actor_options(group, one.rank, sharing), one.rank, _environment(one), heart, self._home)
            for one, _, heart in made
        )
        ranks = Ranks(setup.role, actors, ())
        self._roles[setup.role] = _Role(setup, ranks, numbers=tuple(number for _, number, _ in made))

    def _find(self, roles: Iterable[str]) -> None:
        """Where the actors came up; all come up at once."""
        asked = {(role, rank): actor.address.remote() for role, rank, actor in self._actors(roles)}
        for role in roles:
            each = self._roles[role]
            each.places = [self._waits.get(asked[role, rank], role, rank) for rank in range(len(each.ranks.actors))]
            each.ranks = replace(each.ranks, nodes=tuple(place.node for place in each.places))
            self._waits.nodes |= {(role, rank): place.node for rank, place in enumerate(each.places)}

    def _start(self, roles: Iterable[str], restore: Path | None) -> None:
        waiting: list[Any] = []
        whose: list[tuple[str, int | None]] = []
        for role in roles:
            started = self._start_ranks(self._roles[role], restore)
            mine: list[tuple[str, int | None]] = [(role, rank) for rank in range(len(started))]
            if self._roles[role].setup.pool not in self._turns:
                waiting, whose = waiting + started, whose + mine
                continue
            self._waits.ask(started, mine)
            if self._moves(role):
                moved = [actor.move.remote(InstructionKind.OFFLOAD) for actor in self._roles[role].ranks.actors]
                self._waits.ask(moved, mine)
        self._waits.ask(waiting, whose)

    def _start_ranks(self, each: _Role, restore: Path | None) -> list[Any]:
        """Rank 0 serves the store of the role's ranks, on this host's own address if none is elsewhere."""
        one_host = len({place.node for place in each.places}) == 1
        host = "127.0.0.1" if one_host else each.places[0].host
        started: list[Any] = []
        for actor, rank in zip(each.ranks.actors, each.setup.ranks, strict=True):
            mine = replace(rank, store_host=host, store_port=each.places[0].port if rank.world_size > 1 else None)
            started.append(actor.start.remote(mine, self._make_rank, None if restore is None else restore.resolve()))
        return started

    def _replace(self, roles: Sequence[str], restore: Path | None) -> None:
        self._kill(roles)
        for role in roles:
            setup = self._roles[role].setup
            self._make(setup, sum(other.setup.pool == setup.pool for other in self._roles.values()))
        self._find(roles)
        self._start(roles, restore)

    def _kill(self, roles: Iterable[str]) -> None:
        """Ray is asked first. A stopped process does not hear it; the kernel it obeys."""
        ray, here, elsewhere = import_ray(), list[int](), list[Address]()
        for role in roles:
            each = self._roles[role]
            for actor in each.ranks.actors:
                with suppress(Exception):
                    ray.kill(actor, no_restart=True)
            here += [place.pid for place in each.places if place.node == self._here]
            elsewhere += [place for place in each.places if place.node != self._here]
            each.places = []
            self._pulses.forget(each.numbers)
        _kill_there(elsewhere)
        deadline = time.monotonic() + KILL_SECONDS
        while here and time.monotonic() < deadline:
            here = [process for process in here if is_alive(process)]
            time.sleep(0.02)
        for process in here:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _has_lost(self, role: str) -> bool:
        """Whether a process of the role is known to be gone, stopped or without a pulse."""
        here = [place.pid for place in self._roles[role].places if place.node == self._here]
        return bool(self.silent([role], time.monotonic())) or any(_state(pid) in "ZTX" for pid in here)

    def _first_move(self, role: str) -> InstructionKind | None:
        """What brings a rank that lives on to where a new one is after its start."""
        if not self._moves(role):
            return None
        return InstructionKind.OFFLOAD if self._roles[role].setup.pool in self._turns else InstructionKind.LOAD

    def _moves(self, role: str) -> bool:
        return any(i.role == role and i.kind in MOVES for i in self._stage.programs.instructions)

    def _actors(self, roles: Iterable[str]) -> list[tuple[str, int, Any]]:
        return [(role, rank, a) for role in roles for rank, a in enumerate(self._roles[role].ranks.actors)]


def _remote(actor: type, options: dict[str, Any], *arguments: Any) -> Any:
    return import_ray().remote(actor).options(**options).remote(*arguments)


def _environment(setup: RankSetup) -> dict[str, str]:
    """Environment variables of a rank's process: what must be set before its libraries are loaded."""
    shared = {"OMP_NUM_THREADS": str(setup.threads), "TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
    if setup.role.model is None or backend_of(setup.role) != "vllm":
        return shared
    from flowrl.backends.generators.vllm_settings import environment

    return shared | environment(setup.device, setup.threads)


def _kill_there(places: Sequence[Address]) -> None:
    """End processes of other hosts, by a task on each of those that are still there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = import_ray()
    dead = dead_nodes() if places else frozenset()
    for node in dict.fromkeys(place.node for place in places if place.node not in dead):
        pids = tuple(place.pid for place in places if place.node == node)
        options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        with suppress(Exception):
            ray.get(ray.remote(_kill_here).options(**options).remote(pids), timeout=KILL_SECONDS)


def _kill_here(processes: Sequence[int]) -> None:
    time.sleep(KILL_SECONDS / 4)
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _state(process: int) -> str:
    """The kernel's letter for the state of a process of this host; X if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"
