"""The graph: roles, ops with typed ports, and edges. Frozen; passes make new ones with `msgspec.structs.replace`.

An op's id is `role.method` or `role.method@label`; a data set is role and op `data.NAME` with method NAME. A declared
edge is one (source, target) pair of the flow after commas are fanned out; its id is `a -> b`, `a => b` or `a <-> b`.

Inputs, ops and edges, of which a graph has thousands, are left out of the search for cyclic garbage (`gc=False`): they
are made of values that know nothing of them.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from flowrl.diag.span import Span
from flowrl.graph.params import EngineParams, ForwardParams, OpParams, OptimizerParams
from flowrl.graph.types import Field, Granularity, Unit

_T = TypeVar("_T")


class Kind(StrEnum):
    DATA = "data"
    TRAINER = "trainer"
    GENERATOR = "generator"
    SCORER = "scorer"
    REWARD = "reward"
    ESTIMATOR = "estimator"
    FILTER = "filter"
    ENV = "env"
    FUNCTION = "function"


class EdgeKind(StrEnum):
    DATA = "data"
    WEIGHTS = "weights"
    INTERACTION = "interaction"
    STATE = "state"
    """Order within a step without a column: an op that reads a trainable role runs before the role's update; a filter
    runs before the ops whose rows it decides on (`fields` is then its verdict, keep)."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Names initial weights; each role that uses it has a copy of its own."""

    name: str
    source: str
    """Hub id, folder, `stages.NAME.ROLE`, or `inline` when `shape` is given in the flow."""
    head: str = "lm"
    """lm, scalar or denoiser."""
    dtype: str = "bfloat16"
    inline: dict[str, Any] | None = None
    """The shape a flow writes in place of a source (machine/models.py reads it)."""
    lora: dict[str, Any] | None = None
    """rank, alpha, targets."""
    span: Span | None = None
    """Of the source, if it is written as text; else of the model."""
    spans: dict[str, Span] = {}
    """Where its head and dtype stand, as far as they are written."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    model: str | None = None
    backend: str | None = None
    trainable: bool = False
    """Whether some op updates it. A model without a trainer's update stays at its initial weights."""
    optimizer: OptimizerParams | None = None
    engine: EngineParams = EngineParams()
    on_error: str = "abort"
    """abort, drop (the group) or default (score 0)."""
    frozen: bool = False
    """Of a generator: no weights edge is meant to reach it."""
    forward: ForwardParams | None = None
    """Of a trainer: the parameters of `log_probs` or `values`, for a pass that adds the op."""
    shares: str | None = None
    """A trainer whose frozen base this role's weights are (LoRA): where both live in one pool, one copy serves. Set by
    share_weights."""
    span: Span | None = None
    spans: dict[str, Span] = {}
    """Where its backend stands, if it is written, and each key under engine.extra (`engine.KEY`)."""


class Input(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One slot of an op, bound to exactly one producer once `infer_types` has run."""

    slot: str
    field: str
    """The column of the producer; the same as the slot unless `inputs:` chose another."""
    source: str | None = None
    """Id of the producing op; None before binding."""
    optional: bool = False
    unit: Unit = Unit.TOKEN
    """The finest unit that the slot takes; coarser fields broadcast to it."""
    dtype: str | None = None
    """What the slot takes; None takes anything."""
    chosen: str | None = None
    """What `inputs:` names as the producer: `role`, `role@label` or `data.NAME`; None: found in scope."""
    span: Span | None = None


class Op(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    role: str
    method: str
    label: str | None = None
    granularity: Granularity
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Field, ...] = ()
    params: OpParams | None = None
    firings: int = 1
    """How often it fires a step (the repetition vector over rows of one firing): updates × epochs for an update."""
    every_steps: int = 1
    start_step: int = 0
    """Fires only in steps > start_step (critic warm-up)."""
    derived: bool = False
    """Added by a pass (insert_log_probs), not written by the user."""
    span: Span | None = None
    spans: dict[str, Span] = {}
    """Where its parameters stand, by key, as far as they are written."""


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A declared edge before lowering; after it, a direct producer → consumer edge that names the declared ones."""

    id: str
    kind: EdgeKind
    source: str = msgspec.field(name="from")
    """Op id; for weights the role. Written `from` in JSON."""
    target: str = msgspec.field(name="to")
    fields: tuple[str, ...] = ()
    """The consumer's slots that travel on it; empty for weights."""
    origin: tuple[str, ...] = ()
    """Ids of the declared edges it comes from; empty only if `derived`. Of a derived one that feeds an inner call: the
    edges that feed the router or judge that makes the call."""
    derived: bool = False
    tokens: int = 0
    """Initial tokens: 1 + max_lag on a weights edge, 0 on a data edge."""
    every_steps: int | None = None
    every_updates: int | None = None
    start_step: int | None = None
    transport: str | None = None
    timeout_seconds: float | None = None
    on_timeout: str | None = None
    """retry, drop or abort."""
    granularity: Granularity | None = None
    """The coarser of the two ends: the unit in which a data edge streams. Set by infer_granularity."""
    span: Span | None = None


class Refill(msgspec.Struct, frozen=True, kw_only=True):
    """More prompts are drawn while filters leave fewer than `step.prompts` (dynamic sampling)."""

    max_rounds: int
    oversample: float = 1.0
    """Prompts drawn for each prompt still needed."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The batch algebra of one period."""

    prompts: int
    samples_per_prompt: int = 1
    updates: int = 1
    epochs: int = 1
    refill: Refill | None = None
    spans: dict[str, Span] = {}
    """Where its keys stand, as far as they are written."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    max_lag: int = 0
    partial_rollout: bool = False
    when_stale: str = "wait"
    takes: int = 1
    """Parts in which generators hand their rows on as they are done, at most; 1: all at once."""
    minibatches: str = "fixed"
    """fixed, or arrival: of those that are done next."""
    spans: dict[str, Span] = {}


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """Something a pass took away, with its coded reason; nothing may disappear otherwise."""

    id: str
    reason: str
    """Coded: unread_at_zero_kl, unread, nothing_read, fused_forward, log_probs_not_needed, removed_by_user."""
    text: str


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    models: tuple[Model, ...]
    roles: tuple[Role, ...]
    ops: tuple[Op, ...]
    declared: tuple[Edge, ...]
    """Every edge the user wrote, never changed by a pass."""
    edges: tuple[Edge, ...] = ()
    """The lowered edges; empty before `infer_types`."""
    step: Step
    schedule: Schedule = Schedule()
    removed: tuple[Removal, ...] = ()
    passes: tuple[str, ...] = ()
    """Names of the passes already applied, in order."""

    def op(self, id: str) -> Op:
        return _indexed(self.ops, "id")[id]

    def role(self, name: str) -> Role:
        return _indexed(self.roles, "name")[name]

    def model(self, name: str) -> Model:
        return _indexed(self.models, "name")[name]


_indexes: deque[tuple[tuple[object, ...], dict[str, Any]]] = deque(maxlen=16)


def _indexed(parts: tuple[_T, ...], name: str) -> dict[str, _T]:
    """Parts of a graph by name. A frozen graph has no place to keep it, so the last few are kept here, by identity; of
    parts with one name the first counts."""
    for known, index in _indexes:
        if known is parts:
            return index
    index = {getattr(part, name): part for part in reversed(parts)}
    _indexes.appendleft((parts, index))
    return index
