"""What changes the maths of an op, typed: one tagged struct per op. Machinery is EngineParams, on the role."""

from __future__ import annotations

from typing import Any

import msgspec


class KlParams(msgspec.Struct, frozen=True, kw_only=True):
    """A KL penalty. `form`: k1, k2 or k3 (Schulman 2020, "Approximating KL divergence")."""

    coef: float
    form: str = "k1"


class CorrectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """An off-policy correction: tis (truncate), mis (mask) or reject, by token, turn or sample ratio."""

    name: str
    unit: str = "token"
    cap: float | None = None
    floor: float | None = None


class OptimizerParams(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "adamw"
    """adamw, adamw_8bit or sgd."""
    lr: float = 1e-6
    schedule: str = "constant"
    """constant, linear or cosine; after `warmup_steps` of linear warm-up."""
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0


class EngineParams(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a role takes at start."""

    recompute: str | None = None
    """Activation checkpointing: none, selective or full; None lets the planner decide (RolePlacement.recompute)."""
    offload: bool | None = None
    """Whether the role leaves the device while another works; None lets the planner decide."""
    packing: bool = False
    zero_stage: int | None = None
    """What data parallelism cuts: 1 optimizer states, 2 gradients too, 3 weights too; None: as the backend does."""
    shard_devices: int | None = None
    """Ranks that share one copy of the states (hybrid shard); None: all of dp."""
    optimizer_offload: float = 0.0
    """Share of optimizer states and master weights that lives in host memory."""
    parameter_offload: bool = False
    """Whether weights and states live in host memory and stream in layer by layer."""
    activation_offload: bool = False
    """Whether what `recompute` keeps of a layer lives in host memory."""
    load: str = "parts"
    """parts: each rank reads its parts of the weights; broadcast: one rank reads all and sends them."""
    cross_entropy: str = "whole"
    """Logits in loss and log-probs: whole, kernel, in_place, chunked or fused."""
    sequence_parallel: bool | None = None
    """Whether tp cuts norms and residuals by tokens; None: with tp over 1."""
    expert_tensor_parallel: int | None = None
    """Ranks that share one expert of a mixture; None: tp, if ep leaves that many, else 1."""
    gradient_dtype: str = "float32"
    master_dtype: str | None = None
    """Dtype that a trainer keeps its weights in; None: float32, or the model's where they are frozen."""
    compute_dtype: str = "auto"
    """Numbers in the matrix products of layers of a trainer or scorer: auto (the model's) or fp8."""
    kv_fraction: float | None = None
    """Share of a device's memory that an engine may take for weights and KV cache; None lets the planner decide
    (RolePlacement.memory_share)."""
    max_sequences: int | None = None
    """Sequences that one engine decodes at once; None: its own default for the device."""
    max_batch_tokens: int | None = None
    """Tokens of one step of an engine; None: its own default for the device."""
    max_model_tokens: int | None = None
    """Tokens of the longest sample that an engine is started for; None: the longest that the flow allows."""
    cuda_graphs: bool = True
    sleep_level: int = 1
    """Of an engine off its device: 1 keeps its weights in host memory, 2 drops them."""
    kv_dtype: str = "auto"
    """auto (the model's) or fp8."""
    weights_dtype: str = "auto"
    """auto (the model's) or fp8."""
    gpu_bytes: int | None = None
    extra: dict[str, Any] = {}
    """Passed on to the backend as written, with the keys that a package declares; the plan lists it as unmodelled."""


class DataParams(msgspec.Struct, frozen=True, kw_only=True, tag="data"):
    """A data set: `source` is a jsonl path, or `FILE.py:FUNCTION` that returns rows (called with `args`)."""

    source: str
    """Empty where `seeds` or `mix` stand in its place."""
    prompt: str = "prompt"
    """Name of the column that becomes the field `prompt`."""
    response: str | None = None
    keep: tuple[str, ...] = ()
    args: dict[str, Any] = {}
    max_prompt_tokens: int | None = None
    on_long: str = "error"
    order: str = "shuffle"
    prompts: int | None = None
    """Rows of one firing: step.prompts where an update trains on them, None for the whole set (validation). Set by
    balance_rates."""
    seeds: int | None = None
    mix: dict[str, float] = {}
    """Of a mix: each source's part of the prompts; they add up to 1."""
    sources: dict[str, DataParams] = {}
    """Of a mix: the data sets that it draws from."""
    tag: str | None = None
    """Of a mix: the column that receives the name of the row's source."""
    chosen: str | None = None
    rejected: str | None = None
    images: str | None = None
    template: str | None = None

    @property
    def paired(self) -> bool:
        """Whether its rows are pairs of responses."""
        return self.chosen is not None or any(source.paired for source in self.sources.values())

    def has(self, column: str) -> bool:
        """Whether every row has the kept column or tag: of a mix all sources must have it."""
        if self.sources:
            return column == self.tag or all(source.has(column) for source in self.sources.values())
        return column in self.keep


class GenerateParams(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    max_response_tokens: int
    max_context_tokens: int | None = None
    max_turn_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps every token."""
    stop: tuple[str, ...] = ()
    samples_per_prompt: int = 1
    extra: dict[str, Any] = {}
    """Keys of a denoiser (denoise_steps, eta, height, width, noise_per), and those that a package declares."""


class ForwardParams(msgspec.Struct, frozen=True, kw_only=True, tag="forward"):
    """log_probs or values of a trainer or scorer."""

    micro_batch_tokens: int = 16384
    temperature: float = 1.0
    """Log-probs are of the distribution that was sampled from: logits / temperature of the generator."""


class UpdateParams(msgspec.Struct, frozen=True, kw_only=True, tag="update"):
    loss: str
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float | None = None
    clip_value: float | None = None
    aggregate: str = "token_mean"
    entropy_coef: float = 0.0
    beta: float | None = None
    kl: KlParams | None = None
    old_log_probs: str = "auto"
    corrections: tuple[CorrectionParams, ...] = ()
    updates: int = 1
    epochs: int = 1
    micro_batch_tokens: int = 16384
    temperature: float = 1.0
    action_share: float | None = None
    extra: dict[str, Any] = {}
    """Keys that a package declares for its backend."""


class EstimateParams(msgspec.Struct, frozen=True, kw_only=True, tag="estimate"):
    estimator: str
    normalize: str = "group"
    """none, group or batch."""
    kl: KlParams | None = None
    gamma: float = 1.0
    lam: float = 1.0
    extra: dict[str, Any] = {}


class ScoreParams(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """A reward of flavour `function` (`FILE.py:NAME` or `flowrl:NAME`) or `model` (the role's model), a judge, or, in
    `extra`, a sandbox, router or combine."""

    flavour: str
    function: str | None = None
    """Of a judge the one that reads its model's answers."""
    args: dict[str, Any] = {}
    timeout_seconds: float | None = None
    micro_batch_tokens: int = 16384
    """Of a reward model."""
    extra: dict[str, Any] = {}


class AskParams(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """The inner call of a judge: `template` filled with what the judge is fed, asked of the role's model or of
    `endpoint`."""

    template: str
    endpoint: str | None = None
    parallel: int | None = None
    """Calls of the endpoint at once."""
    timeout_seconds: float | None = None
    sampling: dict[str, Any] = {}
    """Of the role's own model: the keys of `generate`."""


class FilterParams(msgspec.Struct, frozen=True, kw_only=True, tag="filter"):
    rule: str
    unit: str = "group"
    keep_top: float | None = None
    within: str = "step"
    """What keep_top ranks samples within: step, or group (the samples of one prompt)."""
    min: float | None = None
    max: float | None = None
    action: str = "drop"
    function: str | None = None
    args: dict[str, Any] = {}


class EnvParams(msgspec.Struct, frozen=True, kw_only=True, tag="env"):
    env: str
    max_turns: int
    args: dict[str, Any] = {}
    parallel: int | None = None
    timeout_seconds: float | None = None


class CallParams(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """A user function over columns."""

    function: str
    args: dict[str, Any] = {}


OpParams = (
    DataParams
    | GenerateParams
    | ForwardParams
    | UpdateParams
    | EstimateParams
    | ScoreParams
    | AskParams
    | FilterParams
    | EnvParams
    | CallParams
)
