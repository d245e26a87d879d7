"""What the driver asks of a launcher. The driver holds references and metadata; rows stay where they were made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Gather, Metrics
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.execution.contract import Firing
from flowrl.plan.plan import Plan, StagePlan


@dataclass(frozen=True, slots=True)
class Versions:
    """Of rows, one each: the weight version of the oldest and of the newest token that the policy wrote."""

    oldest: IntArray
    newest: IntArray


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one rank made: a handle (a Batch inline, an object reference on Ray) and what the driver must know."""

    handle: Any
    ids: IntArray
    prompt_ids: IntArray
    token_lengths: IntArray | None = None
    """Tokens of each row, for balancing; None for rows without token fields."""
    nbytes: int = 0
    versions: Versions | None = None
    """Of rows whose tokens are tagged with weight versions: those that a generator made."""
    tokens_by_version: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens that the policy wrote under each version."""
    dropped: tuple[int, ...] = ()
    """Prompts that were to be among the rows and had become too old."""
    kept: IntArray | None = None
    """Ids of the rows that a filter keeps, where it has told of all (`action: mask`)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The output of one op in one step: parts by rank and firing."""

    op: str
    step: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class BoundInput:
    """A slot, the column that fills it, and the record that has it. Prompt rows are repeated for each sample of the
    reader: a coarse field broadcasts to a finer reader."""

    slot: str
    field: str
    record: Record
    by_prompt: bool = False
    """Whether its rows meet the reader's by prompt id: prompt rows read by samples, or one row a prompt of another
    sample space. Otherwise rows meet by id."""


@dataclass(frozen=True, slots=True)
class Work:
    """A firing with everything it needs: for each rank of the role the ids of the rows it shall take (None: all)."""

    firing: Firing
    inputs: tuple[BoundInput, ...] = ()
    rank_ids: tuple[IntArray, ...] | None = None
    prompt_start: int = 0
    """For a data op: the position in the data set's order where this step's prompts start."""
    prompt_count: int | None = None
    by_prompt: bool = False
    """For take: whether whole prompts are handed on."""
    joins: bool | None = None
    """For open, of a session that goes on from step to step: see Call."""
    gathers: tuple[Gather, ...] | None = None
    """For take, of such a session: what it asks of each rank."""
    version: int = 0
    """For send_weights and receive_weights: the policy version that travels."""
    folder: Path | None = None
    """For save: the checkpoint's folder."""
    keep_weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """For save: weights edges that leave the role → versions that still wait on them and are not the role's weights of
    now. A launcher that can writes them to checkpoint.weights_file, and has them again when it restores; without them
    a resumed run starts with fresher weights."""
    given: IntArray | None = None
    """For open, of a session that is opened again: ids of the rows that earlier takes have given."""
    again: bool = False
    """Whether it only brings a rank that was made anew to where the one before it stood: what it gives was taken in
    before."""


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank whose process is gone or has stopped answering, or whose host is gone."""

    role: str
    rank: int | None
    reason: str
    with_host: bool = False
    """Whether its host is gone, or rows that lay on one: nothing of the role can be made anew where it was."""


class RankLostError(FlowError):
    """FR0955 or FR0957: the end of a rank, or one that does not come up."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic], lost: LostRank | None = None) -> None:
        super().__init__(diagnostics)
        self.lost = lost or LostRank("", None, "")


@dataclass(frozen=True, slots=True)
class Completion:
    work: Work
    parts: tuple[Part, ...] = ()
    metrics: Metrics = field(default_factory=dict[str, tuple[float, float]])
    start_seconds: float = 0.0
    """On the launcher's monotonic clock."""
    seconds: float = 0.0
    error: BaseException | None = None
    """A FlowError where the cause is known, else the exception of the rank."""
    lost: LostRank | None = None
    """The rank whose end is the error: FR0955."""


class Launcher(Protocol):
    def start(self, plan: Plan, stage: StagePlan, run_folder: Path, restore: Path | None) -> None:
        """Make every rank of every role; with `restore`, from that checkpoint folder."""
        ...

    def submit(self, work: Work) -> None:
        """Begin. Inline works at once; Ray returns before it is done."""
        ...

    def poll(self, timeout_seconds: float) -> Sequence[Completion]:
        """What has completed since the last call; waits up to `timeout_seconds` for the first."""
        ...

    def peek(self, part: Part, fields: Sequence[str], ids: Sequence[int]) -> Batch:
        """Some columns of the rows of `part` that have one of `ids`, for samples.jsonl: never more than a handful."""
        ...

    def give_up(self, work: Work, nothing: Batch) -> Sequence[Part]:
        """Forget a firing under way: what those of its ranks have made that are done; `nothing`, rows of its columns
        without any, if none is."""
        ...

    def revive(self, role: str) -> None:
        """Make all ranks of `role`, which keeps no state, anew where they were, as `start` does, and its weights
        edges. What was under way is forgotten: the driver submits it again. Raises RankLostError if one dies at its
        start or does not come up."""
        ...

    def rewind(self, restore: Path | None, anew: Collection[str]) -> None:
        """Bring everything to where `start` with `restore` would, forgetting what is under way: roles that keep state,
        roles in `anew` and those that have lost a rank are made anew, the others live on and may hold any weights."""
        ...

    def close(self) -> None:
        """End every process and free every shared-memory segment; may be called twice and after a failure."""
        ...
