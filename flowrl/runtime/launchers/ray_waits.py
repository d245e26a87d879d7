"""Waiting for what actors give, and what is said when they do not: the end of a process, a host that is gone, silence.

Takes references; gives their values or RankLostError. Knows the flow's places of roles, no rows and no weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.diag.diagnostic import diagnose
from flowrl.plan.plan import StagePlan
from flowrl.program.program import Instruction
from flowrl.runtime.faults import span_of, span_of_role
from flowrl.runtime.launchers.contract import LostRank, RankLostError
from flowrl.runtime.launchers.ray_actor import Outcome
from flowrl.runtime.launchers.ray_cluster import signals_through

START_SECONDS = 600.0
"""Most that ranks may take to load models and engines."""
NAMED = 4
"""Most silent ranks of a role that are named."""

Whose = tuple[str, int | None]
"""Role and rank."""
_HOSTS = ("its node has died", "node died", "ObjectLostError", "OwnerDiedError", "object lost", "has been lost")
"""Words of Ray's messages where more is gone than a process."""


@dataclass(slots=True)
class Waits:
    stage: StagePlan | None = None
    nodes: dict[Whose, str] = field(default_factory=dict[Whose, str])
    """Where each rank is."""
    silent: Callable[[Collection[str]], list[LostRank]] = lambda roles: []
    """Ranks of some roles whose processes have stopped answering."""

    def ask(self, references: Sequence[Any], ranks: Sequence[Whose] = ()) -> list[Outcome]:
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
                found[reference] = self.get(reference, *whose.get(reference, ("", None)))
                error = found[reference].error
                if error is not None:
                    raise error
            late = [whose.get(reference, ("", None)) for reference in waiting]
            for lost in self.silent({role for role, _ in late if role}):
                if (lost.role, lost.rank) in late:
                    raise self.dead(lost)
            if waiting and time.monotonic() > deadline:
                raise self.unanswered(late)
        return [found[reference] for reference in references]

    def get(self, reference: Any, role: str, rank: int | None = None, instruction: Instruction | None = None) -> Any:
        """The value of a reference that is ready. Raises RankLostError FR0955 for the end of its process."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            with signals_through():
                return ray.get(reference, timeout=START_SECONDS)
        except GetTimeoutError as error:
            raise self.unanswered([(role, rank)]) from error
        except RayError as error:
            raise self.dead(self.lost(role, rank, error), instruction) from error

    def lost(self, role: str, rank: int | None, error: Exception) -> LostRank:
        """Whose end an error of Ray's tells."""
        return LostRank(role, rank, _reason(error), with_host=self._with_host(role, rank, error))

    def dead(self, lost: LostRank, instruction: Instruction | None = None) -> RankLostError:
        """FR0955, at what the rank was doing; None: at its start."""
        doing = "its start" if instruction is None else f"`{instruction.id}`"
        stage = self.stage
        span = None if stage is None else span_of_role(stage, lost.role)
        if stage is not None and instruction is not None:
            span = span_of(stage, instruction)
        who = _who(lost.role, lost.rank)
        return RankLostError(diagnose("FR0955", span, who=who, doing=doing, reason=lost.reason), lost)

    def unanswered(self, ranks: Sequence[Whose]) -> RankLostError:
        """FR0957: no answer in START_SECONDS."""
        by_role: dict[str, list[int | None]] = {}
        for role, rank in ranks:
            by_role.setdefault(role, []).append(rank)
        who = ", ".join(_who_of(role, found) for role, found in by_role.items())
        span = None if self.stage is None else span_of_role(self.stage, ranks[0][0])
        told = diagnose("FR0957", span, who=who, seconds=f"{START_SECONDS:,g}")
        return RankLostError(told, LostRank(*ranks[0], f"no answer for {START_SECONDS:,g} s"))

    def _with_host(self, role: str, rank: int | None, error: Exception) -> bool:
        """Whether a host is gone, or rows that lay on one. A rank that read such rows is well, its rows are not."""
        text = f"{type(error).__name__}: {error}"
        if any(words in text for words in _HOSTS):
            return True
        node = self.nodes.get((role, rank))
        return node is not None and node in dead_nodes()


def dead_nodes() -> frozenset[str]:
    """Hosts that Ray has given up."""
    import ray

    nodes: Sequence[Mapping[str, Any]] = ray.nodes()
    return frozenset(str(node["NodeID"]) for node in nodes if not node["Alive"])


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


def _reason(error: Exception) -> str:
    """The line of Ray's message that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = [line for line in lines if line.startswith("Worker exit detail:")]
    return (detail or lines or [type(error).__name__])[0]
