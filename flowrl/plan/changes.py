"""What differs between two plans, as values: changes by their effect on a run, and totals. Frozen; no logic."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from flowrl.diag.span import Span


class Effect(StrEnum):
    """What a change does to a run of the first plan, from the least to the most."""

    RECOMPILE = "recompile"
    """The program is made anew; engines and weights stay as they are."""
    LIVE = "live"
    """A value that is read at each step: nothing stops."""
    MOVE = "move"
    """Weights go to other devices or into other shards."""
    RESTART = "restart"
    """A process or an engine starts anew."""
    GONE = "gone"
    NEW = "new"


SIGILS: Mapping[Effect, str] = {
    Effect.NEW: "+",
    Effect.GONE: "-",
    Effect.LIVE: "~",
    Effect.RESTART: "±",
    Effect.MOVE: "⇄",
    Effect.RECOMPILE: "↺",
}
SECTIONS = ("roles", "edges", "pools", "engine", "program", "step", "run", "files", "cluster", "warnings")
"""roles: models, roles and ops. step: batch, schedule. run: its length, gates, what stages start from."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `before` is None for what is new, `after` for what is gone."""

    section: str
    """One of SECTIONS."""
    effect: Effect
    what: str
    """`role critic`, `actor_train.update.clip_low`, `layout of actor_infer`, `run critic.values`, …"""
    reason: str
    """Coded: new_role, other_weights, engine_argument, parameter, moved, resharded, order, …"""
    before: str | None = None
    after: str | None = None
    stage: str | None = None
    """None for what is of the whole plan."""
    pool: str | None = None
    """Of an instruction or a placement: the pool of the second plan, of what is gone that of the first."""
    span: Span | None = None
    """Where the second plan's flow says it, if it does."""
    decision: str | None = None
    """Id of the second plan's decision that settled it."""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of both plans."""

    what: str
    """step, run, samples, tokens, price per step, price per hour, devices, memory."""
    unit: str
    before: float | None
    after: float | None
    stage: str | None = None
    pool: str | None = None
    """Of memory: the pool of which this is the fullest phase."""
    limit_before: float | None = None
    limit_after: float | None = None
    """Of memory: what there is."""


class PlanDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What `flowrl diff A B` says."""

    flowrl_diff: int = 1
    """Version of this format."""
    before: str
    """Name of the first plan, as given."""
    after: str
    verdict_before: str
    verdict_after: str
    moved: tuple[str, ...] = ()
    """Digests that differ: flow, cluster, profile, code."""
    changes: tuple[Change, ...] = ()
    """In the order of SECTIONS."""
    totals: tuple[Total, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether something of what runs differs, or a figure of it. A digest alone does not count."""
        return bool(
            self.changes
            or self.verdict_before != self.verdict_after
            or any(each.before != each.after or each.limit_before != each.limit_after for each in self.totals)
        )
