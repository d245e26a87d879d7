"""The documents of every section but roles: cluster, models, data, edges, step, schedule, placement, run, gate …"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from flowrl.spec.document import (
    Arguments,
    ByForm,
    Document,
    Epochs,
    Layers,
    List,
    Mapping,
    NotNegative,
    NotNegativeNumber,
    Positive,
    PositiveNumber,
    Prompts,
    Rate,
    Samples,
    Scalar,
    Share,
    Steps,
    Strings,
    Takes,
    Updates,
)


class GroupDocument(Document):
    """Nodes of one kind."""

    gpu: str
    """Device type of the catalogue, such as H100-80G, or cpu."""
    nodes: Positive = 1
    """Default 1."""
    gpus_per_node: Positive
    """Devices of one node."""
    price_per_gpu_hour: NotNegativeNumber | None = None
    """In the currency you like. Default none."""


class LinksDocument(Document):
    """What the catalogue's link figures are replaced by."""

    node_bytes_per_second: Rate | None = None
    """Between devices of one node, one direction. Default: the device's."""
    network_bytes_per_second: Rate | None = None
    """Per device to other nodes, one direction. Default: the catalogue's."""


class ClusterDocument(Document):
    """Either one kind of node, or named groups of them."""

    gpu: str | None = None
    """Device type of the catalogue, such as H100-80G, or cpu. Default none: `groups` says it."""
    nodes: Positive = 1
    """Default 1."""
    gpus_per_node: Positive | None = None
    """Devices of one node. Default none: `groups` says it."""
    groups: dict[str, GroupDocument] = Field(default_factory=dict)
    """Several kinds of node, by name. Default none."""
    links: LinksDocument = Field(default_factory=LinksDocument)
    """Link figures that differ from the catalogue. Default: none differ."""
    price_per_gpu_hour: NotNegativeNumber | None = None
    """In the currency you like. Default none."""

    @model_validator(mode="after")
    def _one_form(self) -> ClusterDocument:
        flat = self.gpu is not None and self.gpus_per_node is not None
        mixed = bool(self.groups) and (self.gpu is not None or self.gpus_per_node is not None)
        if mixed or not (flat or self.groups):
            found = "both" if mixed else "neither"
            raise PydanticCustomError("flowrl_cluster_form", "{found}", {"found": found})
        return self


class ShapeDocument(Document):
    """A model given by its shape: made with random weights from the run's seed."""

    architecture: str
    """qwen2, llama, …"""
    tokenizer: str
    """`characters`, or a folder or hub id."""
    hidden_size: Positive
    """Width of the residual stream."""
    layers: Layers
    """Decoder layers."""
    heads: Positive
    """Attention heads."""
    kv_heads: Positive | None = None
    """Key and value heads. Default: heads."""
    ffn_size: Positive
    """Width of the feed-forward layer."""
    max_positions: Positive
    """Longest sequence, tokens."""
    tie_embeddings: bool = False
    """One matrix for input and output embedding. Default false."""
    vocab_size: Positive | None = None
    """Rows of the embedding. Default: the tokenizer's length."""


class LoraDocument(Document):
    """Low-rank adapters; the base stays frozen."""

    rank: Positive
    """Rank of an adapter."""
    alpha: PositiveNumber
    """Scale: alpha / rank."""
    targets: Annotated[Annotated[str, Scalar] | Annotated[Strings, List], ByForm] = "all_linear"
    """Module names. Default all_linear."""


class ModelDocument(Document):
    """Names initial weights; each role that uses it has its own copy."""

    source: Annotated[Annotated[str, Scalar] | Annotated[ShapeDocument, Mapping], ByForm]
    """Hub id, folder, `stages.NAME.ROLE`, or an inline shape."""
    head: Literal["lm", "scalar", "denoiser"] = "lm"
    """What the model puts out. Default lm."""
    lora: LoraDocument | None = None
    """Train adapters only. Default none."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Of the weights in compute. Default bfloat16."""


class DataDocument(Document):
    """A data set; exactly one of source, seeds or mix."""

    source: str | None = None
    """A jsonl or parquet file, a folder of them, one that Hugging Face `datasets` saved, a data set's hub id, or
    `FILE.py:FUNCTION` that returns rows (called with `args`). Default none; one of source, seeds, mix is given."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the source function; of a folder or hub id its `split` (train) and, if it has several, the
    `name` of its configuration. Default none."""
    seeds: Positive | None = None
    """That many numbered prompts without text, for environments. Default none; one of source, seeds, mix is given."""
    mix: dict[str, PositiveNumber] | None = None
    """{data set: share} of other data sets. Default none; one of source, seeds, mix is given."""
    tag: str | None = None
    """Column that receives the name of the source in a mix. Default none."""
    prompt: str = "prompt"
    """Column that becomes the prompt: a string or a list of messages. Default prompt."""
    response: str | None = None
    """Column with a given response (supervised). Default none."""
    chosen: str | None = None
    """Column with the better response of a pair. Default none."""
    rejected: str | None = None
    """Column with the worse response of a pair. Default none."""
    images: str | None = None
    """Column with images. Default none."""
    keep: Strings = ()
    """Columns that stay in the record under their own name. Default none."""
    template: str | None = None
    """Jinja2 file that writes a prompt from `prompt` and the row's columns. Default: the tokenizer's chat template."""
    max_prompt_tokens: Positive | None = None
    """Longest prompt. Default: not limited."""
    on_long: Literal["error", "drop", "truncate"] = "error"
    """What happens to a longer prompt: drop leaves the row out and counts it, truncate keeps the end. Default error."""
    order: Literal["shuffle", "sequential", "interleave"] = "shuffle"
    """Order of the rows; reshuffled each epoch. interleave spreads the sources of a mix evenly. Default shuffle."""

    @model_validator(mode="after")
    def _one_source(self) -> DataDocument:
        given = [name for name in ("source", "seeds", "mix") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "flowrl_exactly_one", "{found}", {"found": ", ".join(given), "choices": "source, seeds, mix"}
            )
        return self


class EdgeDocument(Document):
    """An edge after its arrow string is parsed; `a, b -> c, d` has two sources and two targets."""

    sources: Strings
    """Ends before the arrow: `role.op`, `role.op@label`, `data.NAME`; `role` for weights."""
    arrow: Literal["->", "=>", "<->"]
    """-> data, => weights, <-> interaction."""
    targets: Strings
    """Ends after the arrow."""
    every_steps: Positive | None = None
    """Fires in every n-th step only. Default: every step."""
    every_updates: Positive | None = None
    """Weights are published every n optimizer updates. Default: once a step."""
    start_step: NotNegative | None = None
    """Fires in later steps only (critic warm-up). Default 0."""
    fields: Strings | None = None
    """Columns that travel. Default: those that are read."""
    transport: str | None = None
    """How weights travel: shared_memory, cuda_ipc, nccl, object_store, disk. Default: decided."""
    timeout_seconds: PositiveNumber | None = None
    """Longest wait for the other end while that works for the receiver, in seconds. Default none."""
    on_timeout: Literal["retry", "drop", "abort"] | None = None
    """What happens then: the run ends, the other end is made anew and asked again, or groups with missing rows leave
    the step. Default abort."""
    max_lag: NotNegative | None = None
    """Published versions that the receiver may be behind; overrides `schedule.max_lag`. Default: the schedule's."""
    remove: bool = False
    """Deletes an edge of a preset; never true in a resolved flow. Default false."""

    @property
    def text(self) -> str:
        return f"{', '.join(self.sources)} {self.arrow} {', '.join(self.targets)}"


class RefillDocument(Document):
    """Draw more prompts when a filter drops some."""

    max_rounds: Positive
    """Most rounds a step, the first among them; if filters leave too few prompts of all, the run ends."""
    oversample: Annotated[float, Field(ge=1, le=100)] = 1.0
    """Prompts drawn per prompt needed, at most 100. Default 1."""


class StepDocument(Document):
    """The batch of one step."""

    prompts: Prompts
    """Prompts trained on, at most 1,000,000."""
    samples_per_prompt: Samples = 1
    """Responses per prompt, at most 65,536. Default 1."""
    updates: Updates = 1
    """Minibatches in one pass, at most 1,024; must divide prompts. Default 1."""
    epochs: Epochs = 1
    """Passes over the batch, at most 100. Default 1."""
    refill: RefillDocument | None = None
    """Draw more prompts when a filter drops some. Default none."""


class ScheduleDocument(Document):
    """How far generation may run ahead."""

    max_lag: NotNegative = 0
    """Published weight versions between a sample's oldest token and its training. Default 0."""
    partial_rollout: bool = False
    """Interrupt generation for new weights and continue. Default false."""
    when_stale: Literal["wait", "drop"] = "wait"
    """What happens to a sample older than max_lag. Default wait."""
    takes: Takes = 1
    """In how many parts, at most 8, responses may be handed on as they are done, so that scoring elsewhere overlaps
    generation. The plan takes as many of it as shorten the step. Default 1: all at once."""
    minibatches: Literal["fixed", "arrival"] = "fixed"
    """Which prompts an update trains on. fixed: the same ones, whoever is done first. arrival: those that are done
    next, where the plan lets updates begin while others are still generated; `takes` says in how many parts. Default
    fixed."""


class LayoutDocument(Document):
    """A role's parallel shape; dp follows from the pool's size."""

    tp: Positive = 1
    """Tensor parallel. Default 1."""
    pp: Positive = 1
    """Pipeline parallel. Default 1."""
    cp: Positive = 1
    """Context parallel. Default 1."""
    ep: Positive = 1
    """Expert parallel. Default 1."""


class PoolDocument(Document):
    """Devices that its roles share in time."""

    gpus: Positive
    """Number of devices."""
    group: str | None = None
    """Group of the cluster. Default: the only one."""
    roles: Strings = ()
    """Roles that live here. Default none."""
    layouts: dict[str, LayoutDocument] = Field(default_factory=dict)
    """{role: {tp, pp, cp, ep}}. Default: decided."""


class PlacementDocument(Document):
    """Explicit pools and wishes; what is not said is decided."""

    pools: dict[str, PoolDocument] = Field(default_factory=dict)
    """By name. Default: decided."""
    pin: dict[str, str] = Field(default_factory=dict)
    """{role: pool}. Default none."""
    apart: Annotated[tuple[Strings, ...], Field(strict=False)] = ()
    """Pairs of roles that never share a device. Default none."""
    objective: str | None = None
    """What placement minimises: step_time, gpu_seconds (devices times step time), price (of a step, by
    `price_per_gpu_hour`) or gpus (the fewest that are enough). Default step_time."""
    step_seconds_at_most: PositiveNumber | None = None
    """Seconds that a step may take, whatever is minimised. Default: any."""


class RunDocument(Document):
    """How long and with which outputs."""

    steps: Steps = 100
    """Steps of the run, or the most a gated stage may take; at most 10,000,000. Default 100."""
    seed: NotNegative = 0
    """Of everything random. Default 0."""
    checkpoint_every_steps: Positive | None = None
    """Default: at the end only."""
    keep: Positive | None = None
    """Newest checkpoints kept. Default all."""
    loggers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], Field(strict=False)] = ("tensorboard",)
    """Where metrics go beside metrics.jsonl. Default tensorboard."""
    samples_logged: NotNegative = 4
    """Prompts a step written to samples.jsonl. Default 4."""


class DistributionDocument(Document):
    """A random size or time, for the planner."""

    mean: NotNegativeNumber
    """Mean."""
    p99: NotNegativeNumber | None = None
    """99th percentile. Default: as the mean."""


Quantity = Annotated[
    Annotated[NotNegativeNumber, Scalar] | Annotated[DistributionDocument, Mapping],
    ByForm,
]


class LengthDocument(Document):
    """Random tokens of a response, for the planner: told, or measured."""

    mean: NotNegativeNumber | None = None
    """Mean, in tokens. Default: that of `samples` or `data`; one of the three is given."""
    p99: NotNegativeNumber | None = None
    """99th percentile, in tokens. Default: the profile's spread around the mean."""
    samples: str | None = None
    """Path of a file of measured lengths, relative to the flow: lines of numbers, or of rows with `response_tokens`,
    such as a run's samples.jsonl. Default none."""
    data: str | None = None
    """Data set of the flow whose responses (`response`, or `chosen` and `rejected`) are as long: of a file, its first
    10,000 rows, a token for each 4 bytes of text (1 byte where the model's tokenizer is `bytes` or `characters`) and
    one that ends it. Default none."""


ResponseLength = Annotated[
    Annotated[NotNegativeNumber, Scalar] | Annotated[LengthDocument, Mapping],
    ByForm,
]


class AssumeDocument(Document):
    """What only the planner needs to know of an op. Never changes the digest of the maths."""

    response_tokens: ResponseLength | None = None
    """Tokens of a response. Default: half of the most."""
    turns: Quantity | None = None
    """Turns of an episode. Default: half of the most."""
    seconds: Quantity | None = None
    """Latency of one call. Default: the backend's."""
    keep: Share | None = None
    """Share a filter keeps. Default: all."""
    share: Share | None = None
    """Share of samples a route receives. Default: equal."""
    prompts: Positive | None = None
    """Prompts of a validation, which reads all of its data set. Default: as many as a step has."""


class GateDocument(Document):
    """A condition on a metric between stages."""

    metric: str
    """`role.field` or `role.field@label`."""
    at_least: float | None = None
    """Holds from this value up. Default none; one of at_least, at_most is given."""
    at_most: float | None = None
    """Holds from this value down. Default none; one of at_least, at_most is given."""
    when: Literal["end", "first"] = "end"
    """Looked at when the stage ends, or leave it as soon as it holds. Default end."""
    otherwise: Literal["stop", "continue"] = "stop"
    """What follows if it does not hold at the end. Default stop."""

    @model_validator(mode="after")
    def _one_bound(self) -> GateDocument:
        given = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "flowrl_exactly_one", "{found}", {"found": ", ".join(given), "choices": "at_least, at_most"}
            )
        return self
