"""What every backend must do, one protocol per kind of role. One object is one rank of one role, in its own process or
in the launcher's. A rank is called by all ranks of its role in the same order (SPMD).

`batch` columns are named by the op's *slots*; the batch returned holds the op's outputs for the same ids (those of a
generator for the new sample ids). Metrics are (value, weight) pairs; the runtime takes their weighted mean over ranks
and firings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import Batch
from flowrl.graph.graph import Model, Op, Role
from flowrl.plan.plan import Layout

Metrics = Mapping[str, tuple[float, float]]
Bytes = npt.NDArray[np.uint8]
STOP, LENGTH = 0, 1
"""Values of `finish_reason`, int8 [rows]: ended by itself, or cut off at its limit."""


@dataclass(frozen=True, slots=True)
class RankSetup:
    """All that a rank is made from."""

    role: Role
    model: Model | None
    model_folder: Path | None
    """A Hugging Face folder (config.json, *.safetensors, tokenizer) with the initial weights. Of a data set that leaves
    out long prompts the folder of the model that reads them."""
    layout: Layout
    rank: int = 0
    world_size: int = 1
    store_host: str = "127.0.0.1"
    store_port: int | None = None
    """Port of the torch TCPStore of this role's ranks, served by rank 0; None if world_size is 1."""
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    folder: Path = Path(".")
    """Where relative paths of the flow start (user functions, data)."""
    max_tokens: int | None = None
    """Longest prompt + response that the flow allows, for engines that reserve memory."""
    eos: bool = True
    steps: int | None = None
    """Steps of the stage, for learning rates that decay; None if unknown."""
    ops: tuple[Op, ...] = ()
    """The ops of the role, in the graph's order: a data set finds its source here (DataParams)."""
    adapter_edges: frozenset[str] = frozenset()
    """Of a trainer of adapters: weights edges on which they travel alone, without the model they stand in."""
    beside: Any = None
    """Of a scorer whose weights are a trainer's frozen base: that trainer's rank, in the same process. Both work with
    one copy."""


@dataclass(frozen=True, slots=True)
class Call:
    """One firing of an op on this rank."""

    op: Op
    step: int
    seed: int
    """The run's seed. Seeds of samples are made from it and the sample's id, never from a rank or a batch."""
    samples_per_prompt: int = 1
    max_prompt_tokens: int | None = None
    """Limit of the data set that the op's prompts come from (DataParams), and what to do beyond it."""
    on_long: str = "error"
    max_response_tokens: int | None = None
    """Limit of the generate op that made the op's samples: the fixed length of `sequence_sum_fixed`."""
    joins: bool | None = None
    """For open, of a session that goes on from step to step: whether its rows join those under way; false: it begins
    afresh. None: a session of the step."""


@dataclass(frozen=True, slots=True)
class Result:
    batch: Batch | None
    metrics: Metrics
    dropped: tuple[int, ...] = ()
    """Prompts that a session which goes on will never give: they had become too old."""


@dataclass(frozen=True, slots=True)
class Gather:
    """What a take asks of one rank whose session goes on from step to step."""

    prompts: int
    """To give, each with all its samples, as soon as so many are done."""
    later: int = 0
    """Prompts that later takes of the step will ask of this rank."""
    due: tuple[int, ...] = ()
    """Prompts that must be given in this step, which waits for them: a step later they would be too old."""
    oldest: int | None = None
    """Prompts with a token of a weight version before this one are dropped, and count among those given; None: none."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where a full parameter lies in a weight buffer. Names are Hugging Face's; offset in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Rank(Protocol):
    """What the worker calls on any role."""

    def call(self, call: Call, batch: Batch) -> Result:
        """Run `call.op.method`."""
        ...

    def close(self) -> None: ...


class WeightSource(Protocol):
    """A role that weights edges leave."""

    def manifest(self) -> Sequence[TensorSpec]:
        """The layout of the weight buffer: equal on every rank, no communication."""
        ...

    def write_weights(self, buffer: Bytes) -> None:
        """Write this rank's own shards into the buffer. Together the ranks fill it."""
        ...


class WeightTarget(Protocol):
    """A role that weights edges enter."""

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """Pause, update in place, reset caches, continue. After it every output comes from `version`."""
        ...


class Resident(Protocol):
    """A role that can leave its devices while others work. An engine may come back in two parts: `wake_weights`, after
    which new weights can be read, then `wake_cache`; without them `load` is called in place of the first."""

    def load(self) -> None: ...

    def offload(self) -> None: ...


class Streaming(Protocol):
    """A rank that works on while its rows are taken in parts. One without it is called whole (runtime/sessions.py)."""

    def open(self, call: Call, batch: Batch) -> None:
        """Begin `call` on all rows of `batch`."""
        ...

    def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
        """Take `number` (from 1) of `parts`: as soon as so many parts of this rank's rows are done (rounded down; of
        its prompts if `by_prompt`), those not given yet, ids in ascending order. The last take gives all the rest."""
        ...


class Carrying(Protocol):
    """A generator whose session goes on from step to step (partial rollouts): what is not done when a step has its rows
    goes on in the next one, under the weights that came in between. Its tokens are kept, its cache is made anew.
    One without it makes whole responses (runtime/carried_sessions.py)."""

    def join(self, call: Call, batch: Batch, *, afresh: bool) -> None:
        """Prompts that the session works on from here; `afresh`: after forgetting all that it had."""
        ...

    def gather(self, gather: Gather) -> Result:
        """Rows of whole prompts, ids in ascending order; `weight_version` tells each token's version."""
        ...

    def pause(self) -> None:
        """Stop between two tokens. Weights may be read until `resume`."""
        ...

    def resume(self) -> None: ...


class Checkpointed(Protocol):
    def save(self, folder: Path) -> None:
        """Write this rank's state (weights, optimizer, counters) as safetensors and JSON; no pickle."""
        ...

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote, possibly with another number of ranks."""
        ...


class Trainer(Rank, WeightSource, WeightTarget, Resident, Checkpointed, Protocol):
    """Methods log_probs, values, update (LANGUAGE.md). `update` normalises over the minibatch of all ranks."""


class DataSource(Protocol):
    """A data set. It has no batch to be called with: the worker asks for rows by their place in its endless order."""

    @property
    def size(self) -> int:
        """Rows of one epoch."""
        ...

    def rows(self, start: int, count: int | None) -> Batch:
        """Prompt rows with ids start, …, start + count - 1; None: the `size` rows from `start`."""
        ...

    def close(self) -> None: ...


class Generator(Rank, WeightTarget, Resident, Protocol):
    """Method generate: rows of prompts in, samples_per_prompt times as many samples out, ids in ascending order."""


class Scorer(Rank, Resident, Protocol):
    """Methods log_probs (ref_log_probs) and values."""


class Reward(Rank, Protocol):
    """Method score."""
