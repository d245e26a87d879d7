"""What each op, loss and estimator reads and writes (LANGUAGE.md, "Kinds, ops, fields" and "Where parameters live").

Data only, one literal table each; functions choose the rows that given parameters turn on. Knows no torch: a test of
`algos` checks each signature against its implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowrl.graph.graph import Input, Kind
from flowrl.graph.params import EstimateParams, UpdateParams
from flowrl.graph.types import Field, Granularity, Unit

FIELDS: dict[str, Field] = {
    name: Field(name=name, unit=unit, dtype=dtype)
    for name, unit, dtype in (
        ("prompt_id", Unit.PROMPT, "i64"),
        ("prompt", Unit.PROMPT, "messages"),
        ("images", Unit.PROMPT, "bytes[]"),
        ("response", Unit.SAMPLE, "str"),
        ("pair_sign", Unit.SAMPLE, "i8"),
        ("tokens", Unit.TOKEN, "i32"),
        ("loss_mask", Unit.TOKEN, "bool"),
        ("rollout_log_probs", Unit.TOKEN, "f32"),
        ("weight_version", Unit.TOKEN, "i32"),
        ("finish_reason", Unit.SAMPLE, "i8"),
        ("old_log_probs", Unit.TOKEN, "f32"),
        ("entropy", Unit.TOKEN, "f32"),
        ("values", Unit.TOKEN, "f32"),
        ("ref_log_probs", Unit.TOKEN, "f32"),
        ("ref_top_log_probs", Unit.TOKEN, "f32[K]"),
        ("ref_top_tokens", Unit.TOKEN, "i32[K]"),
        ("judge_answer", Unit.SAMPLE, "str"),
        ("judge_answers", Unit.PROMPT, "str[]"),
        ("rewards", Unit.SAMPLE, "f32"),
        ("baseline_rewards", Unit.SAMPLE, "f32"),
        ("advantages", Unit.TOKEN, "f32"),
        ("returns", Unit.TOKEN, "f32"),
        ("keep", Unit.SAMPLE, "bool"),
        ("turn_rewards", Unit.TURN, "f32"),
        ("done", Unit.TURN, "bool"),
        ("state_key", Unit.TURN, "i64"),
        ("success", Unit.SAMPLE, "bool"),
        ("transcript", Unit.SAMPLE, "json"),
        ("latents", Unit.TOKEN, "f16[C,H,W]"),
        ("sigmas", Unit.TOKEN, "f32"),
        ("step_noise", Unit.TOKEN, "f32"),
        ("text_states", Unit.SAMPLE, "f16[N,D]"),
        ("text_pooled", Unit.SAMPLE, "f16[D]"),
    )
}
"""Every column with a name of its own. A slot of the same name takes this dtype, at this unit or a coarser one."""


class OpSignature(msgspec.Struct, frozen=True, kw_only=True):
    """One row of LANGUAGE.md's table of ops."""

    kind: Kind
    method: str
    granularity: Granularity
    reads: tuple[Input, ...] = ()
    writes: tuple[Field, ...] = ()
    heads: tuple[str, ...] = ()
    """Heads of the role's model that have this op; empty: any, or no model."""
    inner: bool = False
    """Whether it is an inner call of another op of the role: shown, never written."""


class LossSignature(msgspec.Struct, frozen=True, kw_only=True):
    """What a loss reads, and whether it may train on samples of older weights without a correction."""

    reads: tuple[str, ...]
    tokens: bool = True
    """Whether it reads tokens and loss_mask besides; a loss that does not makes its own from text."""
    ratio: bool = False
    """Whether it divides by old_log_probs and takes a correction (per `update.old_log_probs`)."""
    kl: bool = False
    """Whether `update.kl` may add ref_log_probs."""
    off_policy_safe: bool = False
    head: str = "lm"
    whole_groups: bool = False
    """Whether a minibatch must never split the samples of one prompt."""
    keys: tuple[str, ...] = ()
    """Keys of `update` that belong to some losses only and that it reads: clip_ratio, clip_dual, clip_value, beta."""
    aggregate: bool = True
    """Whether it has token losses that `update.aggregate` makes into one number; a loss on pairs has not."""


class EstimatorSignature(msgspec.Struct, frozen=True, kw_only=True):
    reads: tuple[str, ...]
    granularity: Granularity = Granularity.GROUP
    writes: tuple[str, ...] = ("advantages",)
    normalize: str = "none"
    """The default of `normalize`; `batch` makes it a step op."""
    finest_rewards: Unit = Unit.SAMPLE
    """The finest unit of `rewards` that it takes: token for process rewards."""
    kl: bool = True
    """Whether a KL in the reward makes sense."""
    keys: Mapping[str, float] = {}
    """Parameters of its own and their defaults: gamma, lam, coef, step_weight, turn_gamma."""
    smallest_group: int = 1
    """Least samples_per_prompt for which it is defined and not always zero."""


class BuiltinFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a function of ours reads, and the arguments it takes from `args:`."""

    fields: tuple[str, ...]
    args: tuple[str, ...] = ()
    optional_args: tuple[str, ...] = ()


def slot(name: str, *, unit: Unit | None = None, optional: bool = False) -> Input:
    """The unbound input `name`, with the dtype and, unless given, the unit of the column of that name."""
    column = FIELDS[name]
    finest = unit or (column.unit if column.unit is not Unit.PROMPT else Unit.SAMPLE)
    return Input(slot=name, field=name, unit=finest, dtype=column.dtype, optional=optional)


def _reads(*names: str) -> tuple[Input, ...]:
    return tuple(slot(name) for name in names)


def _writes(*names: str) -> tuple[Field, ...]:
    return tuple(FIELDS[name] for name in names)


_GENERATED = (
    "tokens",
    "loss_mask",
    "rollout_log_probs",
    "weight_version",
    "response",
    "finish_reason",
)
_PROMPT_OF_SAMPLE = Field(name="prompt", unit=Unit.SAMPLE, dtype="messages")

OPS: tuple[OpSignature, ...] = (
    OpSignature(
        kind=Kind.GENERATOR,
        method="generate",
        granularity=Granularity.SAMPLE,
        reads=(slot("prompt"), slot("images", optional=True)),
        writes=_writes(*_GENERATED),
    ),
    OpSignature(
        kind=Kind.TRAINER,
        method="log_probs",
        granularity=Granularity.SAMPLE,
        # The rollout's own are read only to measure how far the engine and the trainer disagree on the same tokens.
        reads=(*_reads("tokens", "loss_mask"), slot("rollout_log_probs", optional=True)),
        writes=_writes("old_log_probs", "entropy"),
        heads=("lm", "denoiser"),
    ),
    OpSignature(
        kind=Kind.TRAINER,
        method="values",
        granularity=Granularity.SAMPLE,
        reads=_reads("tokens"),
        writes=_writes("values"),
        heads=("scalar",),
    ),
    OpSignature(kind=Kind.TRAINER, method="update", granularity=Granularity.MINIBATCH),
    OpSignature(
        kind=Kind.SCORER,
        method="log_probs",
        granularity=Granularity.SAMPLE,
        reads=_reads("tokens", "loss_mask"),
        writes=_writes("ref_log_probs"),
        heads=("lm", "denoiser"),
    ),
    OpSignature(
        kind=Kind.SCORER,
        method="values",
        granularity=Granularity.SAMPLE,
        reads=_reads("tokens"),
        writes=_writes("values"),
        heads=("scalar",),
    ),
    OpSignature(kind=Kind.REWARD, method="score", granularity=Granularity.SAMPLE, writes=_writes("rewards")),
    OpSignature(
        kind=Kind.REWARD,
        method="compare",
        granularity=Granularity.GROUP,
        reads=_reads("prompt", "response"),
        writes=_writes("rewards"),
    ),
    OpSignature(
        kind=Kind.REWARD,
        method="ask",
        granularity=Granularity.SAMPLE,
        reads=_reads("prompt", "response"),
        writes=_writes("judge_answer"),
        inner=True,
    ),
    OpSignature(
        kind=Kind.REWARD,
        method="ask_pairs",
        granularity=Granularity.GROUP,
        reads=_reads("prompt", "response"),
        writes=_writes("judge_answers"),
        inner=True,
    ),
    OpSignature(kind=Kind.ESTIMATOR, method="estimate", granularity=Granularity.GROUP),
    OpSignature(kind=Kind.FILTER, method="select", granularity=Granularity.SAMPLE, writes=_writes("keep")),
    OpSignature(kind=Kind.ENV, method="reset", granularity=Granularity.SAMPLE, writes=(_PROMPT_OF_SAMPLE,)),
    OpSignature(
        kind=Kind.ENV,
        method="step",
        granularity=Granularity.SAMPLE,
        writes=_writes("turn_rewards", "done", "state_key", "rewards", "success", "transcript"),
    ),
    OpSignature(kind=Kind.FUNCTION, method="call", granularity=Granularity.SAMPLE),
)
"""`update`, `estimate`, `score`, `select`, `reset` and `call` read what their parameters name; the functions below and
the lowering fill that in."""

_POLICY = LossSignature(reads=("advantages",), ratio=True, kl=True)

LOSSES: dict[str, LossSignature] = {
    "ppo": msgspec.structs.replace(_POLICY, keys=("clip_ratio", "clip_dual")),
    "gspo": msgspec.structs.replace(_POLICY, keys=("clip_ratio", "clip_dual")),
    "cispo": msgspec.structs.replace(_POLICY, keys=("clip_ratio",)),
    "topr": msgspec.structs.replace(_POLICY, off_policy_safe=True),
    "reinforce": _POLICY,
    "value": LossSignature(reads=("values", "returns"), off_policy_safe=True, head="scalar", keys=("clip_value",)),
    "sft": LossSignature(reads=("prompt", "response"), tokens=False, off_policy_safe=True),
    "dpo": LossSignature(
        reads=("pair_sign", "ref_log_probs"), off_policy_safe=True, whole_groups=True, keys=("beta",), aggregate=False
    ),
    "distill": LossSignature(reads=("ref_top_log_probs", "ref_top_tokens"), off_policy_safe=True),
    "bradley_terry": LossSignature(
        reads=("pair_sign",), off_policy_safe=True, head="scalar", whole_groups=True, aggregate=False
    ),
}

_GROUPED = ("rewards", "loss_mask")

ESTIMATORS: dict[str, EstimatorSignature] = {
    "grpo": EstimatorSignature(reads=_GROUPED, normalize="group", smallest_group=2),
    "dr_grpo": EstimatorSignature(reads=_GROUPED, smallest_group=2),
    "rloo": EstimatorSignature(reads=_GROUPED, smallest_group=2),
    "opo": EstimatorSignature(reads=_GROUPED, smallest_group=2),
    "raft": EstimatorSignature(reads=_GROUPED, smallest_group=2, kl=False),
    "reinforce_pp_baseline": EstimatorSignature(reads=_GROUPED, normalize="batch", smallest_group=2),
    "gigpo": EstimatorSignature(
        reads=("rewards", "loss_mask", "turn_rewards", "state_key"),
        normalize="group",
        smallest_group=2,
        keys={"gamma": 0.95, "step_weight": 1.0},
    ),
    "gae": EstimatorSignature(
        reads=("rewards", "values", "loss_mask"),
        granularity=Granularity.SAMPLE,
        writes=("advantages", "returns"),
        normalize="batch",
        finest_rewards=Unit.TOKEN,
        keys={"gamma": 1.0, "lam": 1.0},
    ),
    "bi_level_gae": EstimatorSignature(
        reads=("turn_rewards", "values", "loss_mask"),
        granularity=Granularity.SAMPLE,
        writes=("advantages", "returns"),
        normalize="batch",
        kl=False,
        keys={"gamma": 1.0, "lam": 1.0, "turn_gamma": 0.95},
    ),
    "reinforce": EstimatorSignature(
        reads=_GROUPED,
        granularity=Granularity.SAMPLE,
        finest_rewards=Unit.TOKEN,
        keys={"gamma": 1.0},
    ),
    "reinforce_pp": EstimatorSignature(
        reads=_GROUPED,
        granularity=Granularity.SAMPLE,
        normalize="batch",
        finest_rewards=Unit.TOKEN,
        keys={"gamma": 1.0},
    ),
    "remax": EstimatorSignature(reads=("rewards", "baseline_rewards", "loss_mask"), granularity=Granularity.SAMPLE),
    "reverse_kl": EstimatorSignature(
        reads=("ref_log_probs", "old_log_probs", "loss_mask"),
        granularity=Granularity.SAMPLE,
        kl=False,
        keys={"coef": 1.0},
    ),
    "best_worst": EstimatorSignature(reads=("rewards",), writes=("pair_sign",), kl=False, smallest_group=2),
}

BUILTIN_REWARDS: dict[str, BuiltinFunction] = {
    "overlong": BuiltinFunction(
        fields=("loss_mask",), args=("max_tokens", "buffer_tokens"), optional_args=("penalty",)
    ),
}
"""Reward functions that ship with FlowRL (`flowrl:NAME`)."""

BUILTIN_FUNCTIONS: dict[str, BuiltinFunction] = {
    "lagrange": BuiltinFunction(
        fields=("reward_advantages", "safety_advantages", "costs"),
        args=("cost_limit",),
        optional_args=("start", "lr", "most"),
    ),
}
"""Functions of `kind: function` that ship with FlowRL. lagrange: (reward_advantages + m x safety_advantages) / (1 + m)
with a multiplier m that starts at `start` and is `most` at most; each step adds lr x m x (mean of costs - cost_limit)
to its logarithm."""


def methods(kind: Kind, head: str | None) -> tuple[str, ...]:
    """Names of the ops that a role of this kind has and edges may name, given the head of its model."""
    able = (s for s in OPS if s.kind is kind and not s.inner)
    return tuple(s.method for s in able if head is None or not s.heads or head in s.heads)


def op_signature(kind: Kind, method: str, head: str | None) -> OpSignature | None:
    """The signature of one op, or None where the kind (or its model's head) has no such op."""
    matches = (s for s in OPS if s.kind is kind and s.method == method)
    return next((s for s in matches if head is None or not s.heads or head in s.heads), None)


def makers(field: str) -> tuple[OpSignature, ...]:
    """Ops of any kind that may write `field`: what a missing-field error names."""
    by_parameters = {
        Kind.ESTIMATOR: {name for e in ESTIMATORS.values() for name in e.writes},
        Kind.SCORER: {"ref_top_log_probs", "ref_top_tokens"},
    }
    return tuple(
        s
        for s in OPS
        if not s.inner
        and (
            any(f.name == field for f in s.writes) or (s.method != "values" and field in by_parameters.get(s.kind, ()))
        )
    )


def update_reads(params: UpdateParams) -> tuple[Input, ...]:
    """What `update` reads under its parameters, in the order tokens, loss_mask, the loss's own, KL, correction."""
    loss = LOSSES[params.loss]
    names: list[str] = ["tokens", "loss_mask"] if loss.tokens else []
    names += loss.reads
    if loss.ratio and params.old_log_probs != "none":
        names.append("old_log_probs")
    if loss.kl and params.kl is not None and params.kl.coef != 0:
        names.append("ref_log_probs")
    if loss.ratio and params.corrections:
        names.append("rollout_log_probs")
    return _unique(names)


def estimate_reads(params: EstimateParams) -> tuple[Input, ...]:
    """What `estimate` reads under its parameters; a KL in the reward adds old_log_probs, ref_log_probs, loss_mask."""
    estimator = ESTIMATORS[params.estimator]
    names = list(estimator.reads)
    if params.kl is not None and params.kl.coef != 0:
        names += ["old_log_probs", "ref_log_probs", "loss_mask"]
    inputs = _unique(names)
    return tuple(
        msgspec.structs.replace(i, unit=estimator.finest_rewards) if i.slot == "rewards" else i for i in inputs
    )


def estimate_writes(params: EstimateParams) -> tuple[Field, ...]:
    return tuple(FIELDS[name] for name in ESTIMATORS[params.estimator].writes)


def estimate_granularity(params: EstimateParams) -> Granularity:
    """Whitening over the batch needs the whole step; else the estimator's own."""
    if params.normalize == "batch":
        return Granularity.STEP
    own = ESTIMATORS[params.estimator].granularity
    return Granularity.GROUP if params.normalize == "group" and own is Granularity.SAMPLE else own


def scorer_writes(method: str, top_k: int | None) -> tuple[Field, ...]:
    """What a scorer's op writes; `top_k` adds the K likeliest tokens and their log-probs at each position."""
    signature = next(s for s in OPS if s.kind is Kind.SCORER and s.method == method)
    if method != "log_probs" or top_k is None:
        return signature.writes
    top = (
        Field(name="ref_top_log_probs", unit=Unit.TOKEN, dtype=f"f32[{top_k}]"),
        Field(name="ref_top_tokens", unit=Unit.TOKEN, dtype=f"i32[{top_k}]"),
    )
    return signature.writes + top


def _unique(names: Sequence[str]) -> tuple[Input, ...]:
    return tuple(slot(name) for name in dict.fromkeys(names))
