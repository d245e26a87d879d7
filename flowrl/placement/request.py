"""What placement is asked for, and what it answers. Frozen values; no logic."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flowrl.diag.diagnostic import Diagnostic, Severity
from flowrl.diag.span import Span
from flowrl.machine.profile import PROFILE, Profile
from flowrl.plan.plan import Decision, Memory, Pool, SearchReport

STEP_TIME, GPU_SECONDS, PRICE, GPUS = "step_time", "gpu_seconds", "price", "gpus"
OBJECTIVES = (STEP_TIME, GPU_SECONDS, PRICE, GPUS)
"""What placement may minimise: seconds of a step, those times the devices, what they cost, the number of devices."""


class Mode(StrEnum):
    AUTO = "auto"
    COLOCATED = "colocated"
    DISAGGREGATED = "disaggregated"
    POOLS = "pools"


class LayoutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A layout as the flow writes it: dp follows from the pool's devices."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    span: Span | None = None


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpus: int
    group: str | None = None
    roles: tuple[str, ...] = ()
    layouts: dict[str, LayoutRequest] = {}
    span: Span | None = None
    group_span: Span | None = None
    role_spans: dict[str, Span] = {}


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """`assume.ROLE.OP`: means that only the planner needs. None: the printed rule holds."""

    response_tokens: float | None = None
    response_tokens_p99: float | None = None
    response_lengths: tuple[float, ...] = ()
    """Tokens of responses that were measured, or counted in a data set; empty: none were."""
    response_rule: str = ""
    """What was counted and how, in words; empty: they were measured."""
    seconds: float | None = None
    """Mean latency of a call; calls follow each other, so it is the mean that adds up."""
    seconds_p99: float | None = None
    """Its 99th percentile: what the last calls of a firing wait for."""
    turns: float | None = None
    """Mean turns of an episode."""
    keep: float | None = None
    """Share of rows that a filter keeps."""
    share: float | None = None
    """Share of samples that a router sends to a reward."""
    prompts: int | None = None
    """Prompts of a validation: the rows of its data set."""
    origin: str = "assume"


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = Mode.AUTO
    pools: tuple[PoolRequest, ...] = ()
    """Of mode `pools`; roles in none of them are placed by a decision."""
    pin: dict[str, str] = {}
    """Role → pool. Pools of mode auto are `all`, or `rollout` and `train`."""
    pin_spans: dict[str, Span] = {}
    """Where each pin stands, by role."""
    apart: tuple[tuple[str, ...], ...] = ()
    apart_spans: tuple[Span, ...] = ()
    """Where each of them stands."""
    objective: str = STEP_TIME
    """What placement minimises."""
    objective_span: Span | None = None
    step_seconds_at_most: float | None = None
    """No step may take longer, whatever is minimised."""
    at_most_span: Span | None = None
    assume: dict[str, Assumption] = {}
    """By op id."""
    profile: Profile = PROFILE
    """What devices and backends achieve."""
    origins: dict[str, str] = {}
    """Where a value of the flow came from, by dotted path: `roles.critic.update.clip_value` → `ppo.yaml:12:5`."""
    span: Span | None = None
    """Of the value of `placement:`, if it is written."""

    def origin(self, *path: str) -> str:
        """Where the value at `path` came from; `default` if the flow does not say it."""
        return self.origins.get(".".join(path), "default")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    pools: tuple[Pool, ...]
    decisions: tuple[Decision, ...]
    memory: tuple[Memory, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    """FR0501 if it does not fit: the nearest placement is given all the same, with what would help. And warnings."""
    search: SearchReport = SearchReport()
    """Whether it is the best there is."""

    @property
    def fits(self) -> bool:
        return all(each.severity is not Severity.ERROR for each in self.diagnostics)
