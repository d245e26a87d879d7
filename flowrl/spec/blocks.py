"""The blocks that stand inside roles: optimizer, update (loss), engine, generate and their parts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flowrl.spec.document import (
    Arguments,
    ByForm,
    Document,
    Epochs,
    Extensible,
    List,
    Mapping,
    NotNegative,
    NotNegativeNumber,
    Positive,
    PositiveNumber,
    Samples,
    Scalar,
    Share,
    Strings,
    Updates,
    whole,
)


class KlDocument(Document):
    """A KL penalty against the reference: on the estimator it enters the reward, on `update` the loss."""

    coef: NotNegativeNumber
    """Factor of the penalty."""
    form: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL (Schulman 2020). Default k1."""


class CorrectionDocument(Document):
    """An off-policy correction of the loss."""

    name: Literal["tis", "mis", "reject"]
    """tis truncates the importance ratio, mis masks, reject drops the sample."""
    unit: Literal["token", "turn", "sample"] = "token"
    """What the ratio is taken over. Default token."""
    cap: PositiveNumber | None = None
    """Upper bound of the ratio. Default none."""
    floor: NotNegativeNumber | None = None
    """Lower bound of the ratio. Default none."""


class ClipDocument(Document):
    """Two-sided clip range: the ratio stays within [1 - low, 1 + high]."""

    low: NotNegativeNumber
    """Distance below 1."""
    high: NotNegativeNumber
    """Distance above 1."""


ClipRatio = Annotated[
    Annotated[NotNegativeNumber, Scalar] | Annotated[ClipDocument, Mapping],
    ByForm,
]
Corrections = Annotated[
    Annotated[CorrectionDocument, Mapping] | Annotated[tuple[CorrectionDocument, ...], Field(strict=False), List],
    ByForm,
]


class OptimizerDocument(Document):
    """How a trainer steps."""

    name: Literal["adamw", "adamw_8bit", "sgd"] = "adamw"
    """adamw_8bit keeps its moments in blocks of 8 bits. Default adamw."""
    lr: NotNegativeNumber = 1e-6
    """Peak learning rate. Default 1e-6."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the rate after the warm-up. Default constant."""
    warmup_steps: NotNegative = 0
    """Optimizer updates of linear warm-up. Default 0."""
    weight_decay: NotNegativeNumber = 0.0
    """Default 0."""
    max_grad_norm: PositiveNumber | None = 1.0
    """Gradients are scaled down to this norm; null switches it off. Default 1."""


class UpdateDocument(Extensible):
    """The loss of a trainer and the batch it sees."""

    loss: str
    """ppo, value, sft, …; a name of the loss only (GRPO is `estimator: grpo` with `loss: ppo`)."""
    clip_ratio: ClipRatio = 0.2
    """Clip range of the probability ratio. Default 0.2."""
    clip_dual: PositiveNumber | None = None
    """Dual clip for negative advantages. Default none."""
    clip_value: PositiveNumber | None = None
    """Clip range of the value prediction. Default none."""
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum_fixed"] = "token_mean"
    """How token losses become one number; denominators are over the minibatch. Default token_mean."""
    entropy_coef: float = 0.0
    """Factor of the entropy bonus. Default 0."""
    beta: PositiveNumber | None = None
    """Temperature of a preference loss. Default none."""
    kl: KlDocument | None = None
    """KL penalty in the loss. Default none."""
    old_log_probs: Literal["auto", "recompute", "rollout", "none"] = "auto"
    """Where old log-probs come from. Default auto: the rollout's only at lag 0 with one update a step."""
    correction: Corrections = ()
    """One off-policy correction or a list. Default none."""
    updates: Updates | None = None
    """Minibatches in one pass; overrides `step.updates`. Default: the step's."""
    epochs: Epochs | None = None
    """Passes over the batch; overrides `step.epochs`. Default: the step's."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one forward and backward on a rank. Default 16384."""
    action_share: Share | None = None
    """Share of a denoiser's steps that is trained on. Default all."""

    @property
    def corrections(self) -> tuple[CorrectionDocument, ...]:
        return self.correction if isinstance(self.correction, tuple) else (self.correction,)


class EngineDocument(Extensible):
    """What the process of a role takes at start."""

    recompute: Literal["none", "selective", "full"] | None = None
    """Activation checkpointing. Default: the planner decides, the faster of `none` and `full` that fits."""
    offload: bool | None = None
    """Whether the role leaves the device while another works. Default: the planner decides."""
    packing: bool = False
    """Rows of different lengths share a sequence without padding. Default false."""
    zero_stage: Annotated[Literal[1, 2, 3], BeforeValidator(whole)] | None = None
    """What data parallelism cuts: 1 optimizer states, 2 gradients too, 3 weights too. Default 3; megatron has 1."""
    shard_devices: Positive | None = None
    """Ranks that share one copy of the states; dp holds several copies (hybrid shard). Default: all of dp."""
    optimizer_offload: Share = 0.0
    """Share of optimizer states and master weights that lives in host memory. Default 0."""
    parameter_offload: bool = False
    """Whether weights and states live in host memory and stream in layer by layer. Default false."""
    activation_offload: bool = False
    """Whether what `recompute` keeps of a layer lives in host memory. Default false."""
    load: Literal["parts", "broadcast"] = "parts"
    """How weights come: each rank reads its parts, or one rank reads all and sends them. Default parts."""
    cross_entropy: Literal["whole", "kernel", "in_place", "chunked", "fused"] = "whole"
    """Logits in loss and log-probs: all at once by torch, by a kernel with their gradient or over them, some tokens at
    a time, or never kept. Default whole."""
    sequence_parallel: bool | None = None
    """Whether tp cuts norms and residuals by tokens (megatron). Default: true with tp over 1."""
    expert_tensor_parallel: Positive | None = None
    """Ranks that share one expert of a mixture (megatron). Default: tp, if ep leaves that many; else 1."""
    gradient_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype that gradients are reduced and kept in. Default float32."""
    master_dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype that a trainer keeps its weights in. Default: float32; the model's where they are frozen (LoRA)."""
    compute_dtype: Literal["auto", "fp8"] = "auto"
    """Numbers in the matrix products of a trainer's or scorer's layers; auto is the model's dtype. Default auto."""
    kv_fraction: Share | None = None
    """Share of a device's memory for an engine's weights and KV cache. Default: decided by placement, at most 0.85."""
    max_sequences: Positive | None = None
    """Sequences that one engine decodes at once. Default: the engine's own for the device."""
    max_batch_tokens: Positive | None = None
    """Tokens of one step of an engine, prompts and new ones. Default: the engine's own for the device."""
    max_model_tokens: Positive | None = None
    """Tokens of the longest sample an engine is started for. Default: the longest that the flow allows."""
    cuda_graphs: bool = True
    """Whether an engine captures its decode steps in graphs, which hold memory. Default true."""
    sleep_level: Annotated[Literal[1, 2], BeforeValidator(whole)] = 1
    """Of an engine that leaves its device: 1 keeps its weights in host memory, 2 drops them. Default 1."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Numbers in an engine's KV cache; auto is the model's dtype. Default auto."""
    weights_dtype: Literal["auto", "fp8"] = "auto"
    """Numbers in an engine's weights; auto is the model's dtype. Default auto."""
    gpu_bytes: Positive | None = None
    """Bytes of a GPU that a function role uses. Default none."""
    extra: Arguments = Field(default_factory=dict)
    """Passed on to the backend as written; the plan lists it as unmodelled. Default none."""


class ForwardDocument(Document):
    """A trainer's `log_probs` or `values`."""

    micro_batch_tokens: Positive = 16384
    """Tokens of one forward on a rank. Default 16384."""


class GenerateOverrides(Extensible):
    """`generate@LABEL`: keys that differ from `generate`; a key left out (None) keeps the value of `generate`."""

    max_response_tokens: Positive | None = None
    """Tokens of a whole episode. Default: as in `generate`."""
    max_turn_tokens: Positive | None = None
    """Tokens of one turn. Default: as in `generate`."""
    max_context_tokens: Positive | None = None
    """Tokens of prompt and response together. Default: as in `generate`."""
    temperature: NotNegativeNumber | None = None
    """0 is greedy. Default: as in `generate`."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling. Default: as in `generate`."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """-1 keeps every token. Default: as in `generate`."""
    stop: Strings | None = None
    """Texts that end a response. Default: as in `generate`."""
    samples_per_prompt: Samples | None = None
    """Responses per prompt of this call, at most 65,536. Default 1."""
    denoise_steps: Positive | None = None
    """Steps of a denoiser. Default: as in `generate`."""
    eta: NotNegativeNumber | None = None
    """Noise of a denoiser's sampler. Default: as in `generate`."""
    height: Positive | None = None
    """Pixels. Default: as in `generate`."""
    width: Positive | None = None
    """Pixels. Default: as in `generate`."""
    noise_per: Literal["sample", "prompt"] | None = None
    """Whether the samples of a prompt share their first noise. Default: as in `generate`."""


class GenerateDocument(Extensible):
    """Sampling parameters of `generate`."""

    max_response_tokens: Positive | None = None
    """Tokens of a whole episode. No default: a generator of tokens must give it."""
    max_turn_tokens: Positive | None = None
    """Tokens of one turn. Default: no limit but the episode's."""
    max_context_tokens: Positive | None = None
    """Tokens of prompt and response together. Default: the longest prompt and the longest response."""
    temperature: NotNegativeNumber = 1.0
    """0 is greedy. Default 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling. Default 1."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """-1 keeps every token. Default -1."""
    stop: Strings = ()
    """Texts that end a response. Default none."""
    denoise_steps: Positive | None = None
    """Steps of a denoiser. Default none."""
    eta: NotNegativeNumber | None = None
    """Noise of a denoiser's sampler. Default none."""
    height: Positive | None = None
    """Pixels. Default none."""
    width: Positive | None = None
    """Pixels. Default none."""
    noise_per: Literal["sample", "prompt"] | None = None
    """Whether the samples of a prompt share their first noise. Default none."""
