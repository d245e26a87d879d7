"""The role documents, one per kind, told apart by `kind` (LANGUAGE.md, "Where parameters live")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from flowrl.spec.blocks import (
    EngineDocument,
    ForwardDocument,
    GenerateDocument,
    GenerateOverrides,
    KlDocument,
    OptimizerDocument,
    UpdateDocument,
)
from flowrl.spec.document import DECLARED, Arguments, Document, NotNegativeNumber, Positive, PositiveNumber, Share
from flowrl.spec.package_keys import PackageKey, known_keys

DEFAULT_KINDS: Mapping[str, str] = {
    "actor_train": "trainer",
    "actor_infer": "generator",
    "critic": "trainer",
    "reference": "scorer",
    "reward": "reward",
    "advantage": "estimator",
}
KINDS: tuple[str, ...] = ("trainer", "generator", "scorer", "reward", "estimator", "filter", "env", "function")
FLAVOURS: tuple[str, ...] = ("function", "model", "judge", "sandbox", "router", "combine")
LABEL_PREFIX = "generate@"
LABELLED = "generate@*"
"""Stands for all keys `generate@LABEL` together; cannot be written itself."""


class RoleBase(Document):
    """Keys of any role."""

    backend: str | None = None
    """Name of the backend that runs it. Default: none for roles without a model."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """{slot: role.field}: which column a slot reads where names alone do not say. Default none."""
    engine: EngineDocument = Field(default_factory=EngineDocument)
    """What the process takes at start. Default: each key's own."""
    on_error: Literal["abort", "drop", "default"] = "abort"
    """A failing row ends the run, drops its group or scores 0. Default abort."""

    @model_validator(mode="before")
    @classmethod
    def _gather_declared(cls, value: Any) -> Any:
        """Keys that a package declares for the backend stand apart in their block, for they are typed elsewhere."""
        if not isinstance(value, dict):
            return value
        keys = cast("dict[str, Any]", value)
        backend = keys.get("backend")
        declared = known_keys(str(keys.get("kind")), backend if isinstance(backend, str) else None)
        if not declared:
            return keys
        made = {key: _gathered(item, declared.get(key, {})) for key, item in keys.items()}
        calls, sampling = made.get(LABELLED), declared.get("generate", {})
        if isinstance(calls, dict):
            calls = cast("dict[str, Any]", calls)
            made[LABELLED] = {label: _gathered(item, sampling) for label, item in calls.items()}
        return made


def _gathered(block: Any, declared: Mapping[str, PackageKey]) -> Any:
    if not isinstance(block, dict) or not declared:
        return cast("Any", block)
    keys = cast("dict[str, Any]", block)
    own = {key: item for key, item in keys.items() if key in declared}
    return {**{key: item for key, item in keys.items() if key not in own}, DECLARED: own} if own else keys


class TrainerRole(RoleBase):
    """Holds weights and updates them. Ops: log_probs or values, update."""

    kind: Literal["trainer"] = "trainer"
    """trainer. Default for `actor_train` and `critic`."""
    model: str
    """Name under `models`: the initial weights."""
    optimizer: OptimizerDocument = Field(default_factory=OptimizerDocument)
    """How it steps. Default: each key's own."""
    update: UpdateDocument
    """Its loss."""
    log_probs: ForwardDocument = Field(default_factory=ForwardDocument)
    """Parameters of `log_probs`. Default: each key's own."""
    values: ForwardDocument = Field(default_factory=ForwardDocument)
    """Parameters of `values` (head scalar). Default: each key's own."""


class GeneratorRole(RoleBase):
    """Samples responses. Op: generate, also as `generate@LABEL`."""

    kind: Literal["generator"] = "generator"
    """generator. Default for `actor_infer`."""
    model: str
    """Name under `models`: the initial weights."""
    generate: GenerateDocument
    """Sampling parameters."""
    labelled: dict[str, GenerateOverrides] = Field(default_factory=dict, alias=LABELLED)
    """Written as `generate@LABEL: {…}`: what differs from `generate` in that call. Default none."""
    frozen: bool = False
    """Says that no weights edge is meant to reach it. Default false."""

    @model_validator(mode="before")
    @classmethod
    def _collect_labels(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = cast("dict[str, Any]", value)
        plain = {key: item for key, item in keys.items() if not key.startswith(LABEL_PREFIX)}
        marked = {key.removeprefix(LABEL_PREFIX): item for key, item in keys.items() if key.startswith(LABEL_PREFIX)}
        return {**plain, LABELLED: marked} if marked else plain


class ScorerRole(RoleBase):
    """A frozen model that scores. Op: log_probs (head lm) or values (head scalar)."""

    kind: Literal["scorer"] = "scorer"
    """scorer. Default for `reference`."""
    model: str
    """Name under `models`."""
    top_k: Positive | None = None
    """Also write the K most likely tokens with their log-probs. Default none."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one forward on a rank. Default 16384."""


class JudgeDocument(Document):
    """A reward asked of a model in words."""

    template: str
    """Prompt template file."""
    parse: str
    """`FILE.py:NAME` that turns the answer into a number."""
    endpoint: str | None = None
    """URL of a served model. Default: the role's own model."""
    parallel: Positive | None = None
    """Calls at once. Default: the backend's."""


class SandboxDocument(Document):
    """A reward from running the response against tests."""

    image: str
    """Name of the environment: `py311` is Python 3.11 with its standard library."""
    tests: str
    """Column that holds the tests: Python to run after the response's code, `{input, output}`, or a list of these."""
    timeout_seconds: PositiveNumber = 10.0
    """Of processor time per sample, twice that on the clock. Default 10."""
    parallel: Positive | None = None
    """Runs at once. Default: the backend's."""
    memory_bytes: Positive = 1 << 30
    """Of all processes of one sample. Default 1073741824 (1 GiB)."""
    score: Literal["share", "all"] = "share"
    """The share of its tests that a response passes, or 1 for all of them and 0 otherwise. Default share."""
    isolation: Literal["namespaces", "limits"] = "namespaces"
    """`limits` leaves the host's files and network open to the code: for hosts that allow no more. Default
    namespaces."""


class RouterDocument(Document):
    """Sends each sample to one of several rewards."""

    by: str
    """Column that chooses, `column` or `role.column`; of a mix, its `tag`."""
    routes: dict[str, str]
    """{value of the column: reward role}; a key may name several values, "math, gsm8k", and "*" is the rest."""


class RewardRole(RoleBase):
    """Scores samples; exactly one flavour: function, model, judge, sandbox, router or combine."""

    kind: Literal["reward"] = "reward"
    """reward. Default for `reward`."""
    function: str | None = None
    """`FILE.py:NAME` or `flowrl:NAME`; parameter names are the columns it reads. Default none; one flavour is given."""
    model: str | None = None
    """Name under `models`: the reward model, or the judge's. Default none."""
    judge: JudgeDocument | None = None
    """A model asked in words. Default none; one flavour is given."""
    sandbox: SandboxDocument | None = None
    """Runs the response. Default none; one flavour is given."""
    router: RouterDocument | None = None
    """Chooses another reward per sample. Default none; one flavour is given."""
    combine: dict[str, float] | None = None
    """{reward role: weight}. Default none; one flavour is given."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function. Default none."""
    generate: GenerateDocument | None = None
    """Sampling of a judge's model. Default none: greedy."""
    unit: Literal["sample", "turn", "token"] = "sample"
    """What one reward belongs to. Default sample."""
    timeout_seconds: PositiveNumber | None = None
    """Of one call of the function or judge. Default none."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one forward of a reward model on a rank. Default 16384."""

    @model_validator(mode="after")
    def _one_flavour(self) -> RewardRole:
        given = [name for name in FLAVOURS if getattr(self, name) is not None]
        if "judge" in given and "model" in given:
            given.remove("model")
        if len(given) != 1:
            raise PydanticCustomError(
                "flowrl_exactly_one", "{found}", {"found": ", ".join(given), "choices": ", ".join(FLAVOURS)}
            )
        return self

    @property
    def flavour(self) -> str:
        """function, model, judge, sandbox, router or combine."""
        return next(name for name in ("judge", *FLAVOURS) if getattr(self, name) is not None)


class EstimatorRole(RoleBase):
    """Turns rewards into advantages."""

    kind: Literal["estimator"] = "estimator"
    """estimator. Default for `advantage`."""
    estimator: str
    """grpo, gae, …"""
    normalize: Literal["none", "group", "batch"] | None = None
    """Scale advantages to unit deviation within the group or batch. Default: the estimator's own."""
    kl: KlDocument | None = None
    """KL penalty in the reward. Default none."""
    gamma: Share | None = None
    """Discount per token (per turn for gigpo). Default: the estimator's own."""
    lam: Share | None = None
    """GAE's lambda. Default: the estimator's own."""
    coef: float | None = None
    """Factor of reverse_kl. Default: the estimator's own."""
    step_weight: NotNegativeNumber | None = None
    """Weight of gigpo's step-level advantage. Default: the estimator's own."""
    turn_gamma: Share | None = None
    """Discount per turn of bi_level_gae. Default: the estimator's own."""


class FilterRole(RoleBase):
    """Drops or masks rows."""

    kind: Literal["filter"]
    """filter."""
    rule: Literal["zero_spread", "spread", "threshold", "truncated", "function"]
    """What is looked at."""
    by: str | None = None
    """Column, as `role.field`. Default: the only rewards in scope."""
    unit: Literal["sample", "group"] = "group"
    """What is kept or dropped. Default group."""
    keep_top: Share | None = None
    """Share that stays, the highest first (fixed rate). Default none."""
    within: Literal["step", "group"] = "step"
    """Which samples `keep_top` ranks together: all of the step, or those of one prompt. Default step."""
    min: float | None = None
    """Rows below it go (bounded rate). Default none."""
    max: float | None = None
    """Rows above it go (bounded rate). Default none."""
    action: Literal["drop", "mask"] = "drop"
    """Default drop."""
    function: str | None = None
    """`FILE.py:NAME` for `rule: function`. Default none."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function. Default none."""


class EnvRole(RoleBase):
    """An environment that answers a generator turn by turn."""

    kind: Literal["env"]
    """env."""
    env: str
    """`FILE.py:CLASS`, `flowrl:NAME` (bandit, sokoban, frozen_lake) or `LIBRARY:ID` (gymnasium, gem, reasoning_gym)."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the environment. Default none."""
    max_turns: Positive
    """Turns per agent."""
    parallel: Positive | None = None
    """Environments at once; further episodes wait for one to be free. Default: one for each sample of a step."""
    timeout_seconds: PositiveNumber | None = None
    """Of one turn, or one reset, of one environment; `on_error` says what then. Default none."""


class OutputDocument(Document):
    """A column that a function writes."""

    unit: Literal["token", "turn", "sample", "prompt"]
    """What one value belongs to."""
    dtype: str
    """i8, i32, i64, f32, bool, str, json."""


class FunctionRole(RoleBase):
    """Any user function over columns. Op: call."""

    kind: Literal["function"]
    """function."""
    function: str
    """`FILE.py:NAME`; parameter names are the columns it reads."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments. Default none."""
    unit: Literal["prompt", "sample", "group", "minibatch", "step"] = "sample"
    """Rows of one call. Default sample."""
    outputs: dict[str, OutputDocument]
    """{name: {unit, dtype}}."""


RoleDocument = Annotated[
    TrainerRole | GeneratorRole | ScorerRole | RewardRole | EstimatorRole | FilterRole | EnvRole | FunctionRole,
    Field(discriminator="kind"),
]


def _name_kinds(value: Any) -> Any:
    """Add `kind` to the roles that have theirs by name."""
    if not isinstance(value, dict):
        return value
    return {name: _with_kind(name, role) for name, role in cast("dict[str, Any]", value).items()}


def _with_kind(name: str, role: Any) -> Any:
    if not isinstance(role, dict) or "kind" in role or name not in DEFAULT_KINDS:
        return cast("Any", role)
    return {"kind": DEFAULT_KINDS[name], **cast("dict[str, Any]", role)}


Roles = Annotated[dict[str, RoleDocument], BeforeValidator(_name_kinds)]
