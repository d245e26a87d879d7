"""RoleWorker: one rank of one role, the same under every launcher. It gathers its input, calls the rank, and says what
came out. It holds no records and decides nothing; which rows, versions and folders is the driver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np

from flowrl.backends.batch import AnyArray, Batch, Column, IntArray, Ragged, take
from flowrl.backends.contract import Call, Gather, Rank, RankSetup, Result, TensorSpec
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.routes import router_of
from flowrl.graph.state import keeps_state
from flowrl.program.program import InstructionKind
from flowrl.runtime.ages import versions_in
from flowrl.runtime.assemble import Source, assemble
from flowrl.runtime.carried_sessions import CarriedSession
from flowrl.runtime.checkpoint import write_through
from flowrl.runtime.interact import first_words
from flowrl.runtime.launchers.contract import Part
from flowrl.runtime.sessions import Session
from flowrl.runtime.weights import WeightBuffer

ENDS = (InstructionKind.PAUSE, InstructionKind.RESUME, InstructionKind.CLOSE)
"""What halts a session, goes on with it and ends it."""
MakeRank = Callable[[RankSetup], Any]


class RoleWorker:
    """One rank. `make_rank` is the registry's unless a test gives another."""

    def __init__(self, setup: RankSetup, make_rank: MakeRank | None = None) -> None:
        self.setup = setup
        self._rank: Any = (make_rank or _registered())(setup)
        self._session: Session | None = None
        self._carried: CarriedSession | None = None

    def run(self, call: Call, sources: Sequence[Source], ids: IntArray | None) -> Result:
        """Run the op on rows `ids` (None: all that the sources have in common)."""
        return cast("Rank", self._rank).call(call, assemble(sources, ids, _routed_slots(call)))

    def rows(self, start: int, count: int | None) -> Result:
        """For a data role: rows `start` … of the data set's endless order; None: one epoch from there. `dropped_rows`
        counts the rows of the source that are left out for their length."""
        dropped = int(getattr(self._rank, "dropped", 0))
        metrics = {"dropped_rows": (float(dropped), 1.0)} if dropped else {}
        return Result(self._method("rows")(start, count), metrics)

    def open(self, call: Call, sources: Sequence[Source], ids: IntArray | None, given: IntArray | None = None) -> None:
        """Begin a session of the op on rows `ids`; one that is opened again has rows that it need not give any more. To
        a session that goes on from step to step they are added."""
        if call.joins is not None:
            self._carried = self._carried or CarriedSession(self._rank)
            self._carried.join(call, assemble(sources, ids))
            return
        self._session = Session(self._rank, call, assemble(sources, ids), given)

    def begin(self, call: Call, sources: Sequence[Source], ids: IntArray | None, *, reset: bool) -> IntArray:
        """Begin the episodes of a call of generate that plays with an environment; gives the ids of their samples."""
        samples, prompts = first_words(call, assemble(sources, ids), reset=reset)
        self._method("begin")(call, samples, prompts)
        return samples

    @property
    def rank(self) -> Any:
        """What plays in an interaction: a Speaker or a World (backends/envs/conversation.py)."""
        return self._rank

    def forget_session(self) -> None:
        """What is open is of no use any more."""
        self._session = self._carried = None
        if hasattr(self._rank, "fall_silent"):
            self._rank.fall_silent()

    def take(self, number: int, parts: int, by_prompt: bool, gather: Gather | None = None) -> Result:
        """The session's rows that are done next, as take `number` (from 1) of `parts`, or what `gather` asks for."""
        if gather is not None and self._carried is not None:
            return self._carried.gather(gather)
        if self._session is None:
            raise InternalError(f"role `{self.setup.role.name}` was asked for rows of a session that is not open")
        return self._session.take(number, parts, by_prompt=by_prompt)

    def move(self, kind: InstructionKind) -> None:
        """Load, offload, one half of a wake-up, or what halts or ends a session. A rank without halves wakes whole in
        the first."""
        if kind is InstructionKind.CLOSE:
            self._session = None
            return
        if kind in (InstructionKind.PAUSE, InstructionKind.RESUME):
            if self._carried is not None:
                self._carried.pause() if kind is InstructionKind.PAUSE else self._carried.resume()
            return
        apart = kind not in (InstructionKind.WAKE_WEIGHTS, InstructionKind.WAKE_CACHE) or hasattr(self._rank, kind)
        if apart:
            self._method(kind)()
        elif kind is InstructionKind.WAKE_WEIGHTS:
            self._method("load")()

    def manifest(self, edge: str = "") -> tuple[TensorSpec, ...]:
        """Of what travels on a weights edge."""
        return tuple(self._method("manifest")(**self._sent_on(edge)))

    def write_weights(self, buffer: WeightBuffer, version: int, edge: str = "") -> None:
        """Write this rank's shards of the role's current weights into `buffer` as `version`."""
        with buffer.writing(version, self.setup.rank) as array:
            self._method("write_weights")(array, **self._sent_on(edge))

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: WeightBuffer, version: int) -> None:
        """Take `version` out of `buffer` in place."""
        with buffer.reading(version) as array:
            self._method("read_weights")(manifest, array, version)

    @property
    def keeps_state(self) -> bool:
        """Whether a checkpoint has something of this role."""
        return keeps_state(self.setup.role, self.setup.ops)

    def save(self, folder: Path) -> None:
        """Write this rank's state under `folder`/ROLE, `folder` being the checkpoint's, through to the disk."""
        place = folder / self.setup.role.name
        place.mkdir(parents=True, exist_ok=True)
        self._method("save")(place)
        write_through(place)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote to the checkpoint `folder`; a role that keeps no state has nothing to read."""
        if self.keeps_state:
            self._method("restore")(folder / self.setup.role.name)

    def close(self) -> None:
        self._method("close")()

    def base(self) -> Any:
        """What a scorer beside this trainer works with."""
        return self._rank

    def _sent_on(self, edge: str) -> dict[str, bool]:
        return {"adapters": True} if edge in self.setup.adapter_edges else {}

    def _method(self, name: str) -> Callable[..., Any]:
        method = getattr(self._rank, name, None)
        if method is None:
            raise InternalError(f"role `{self.setup.role.name}` was asked to {name}, which its backend cannot do")
        return method


def _routed_slots(call: Call) -> tuple[str, ...]:
    """Of a router, the slots of its routes: each brings some of the rows."""
    router = router_of(call.op)
    return () if router is None else tuple(i.slot for i in call.op.inputs if i.slot != router.by)


def _registered() -> MakeRank:
    from flowrl.backends.registry import make_rank

    return make_rank


def part_of(batch: Batch, handle: Any, dropped: tuple[int, ...] = ()) -> Part:
    """What the driver must know of rows that a rank made. `handle` is the batch itself or a reference to it."""
    versions, tokens_by_version = versions_in(batch)
    return Part(
        handle=handle,
        ids=batch.ids,
        prompt_ids=batch.prompt_ids,
        token_lengths=_token_lengths(batch),
        nbytes=sum(_nbytes(column) for column in batch.columns.values()),
        versions=versions,
        tokens_by_version=tokens_by_version,
        dropped=dropped,
        kept=_kept(batch),
    )


def _kept(batch: Batch) -> IntArray | None:
    keep = batch.columns.get("keep")
    return batch.ids[np.flatnonzero(keep)] if isinstance(keep, np.ndarray) and keep.dtype == np.bool_ else None


TEXT_CHARACTERS = 4_000
"""Most characters of a text that the driver is shown; of a longer one its beginning and its end."""


def rows_with(batch: Batch, fields: Sequence[str], ids: Sequence[int]) -> Batch:
    """The rows of `batch` that have one of `ids`, with the columns `fields` alone (those it has), as the driver may see
    them: of a token column the sum over each row (of the weight versions under a mask the stretches), of long texts
    both ends. So what it sees does not grow with the length of sequences."""
    places = np.flatnonzero(np.isin(batch.ids, np.asarray(ids, dtype=np.int64)))
    kept = {name: take(batch.columns[name], places) for name in fields if name in batch.columns}
    shown = {name: _short(column) for name, column in kept.items()}
    tags, mask = kept.get("weight_version"), kept.get("loss_mask")
    if isinstance(tags, Ragged) and isinstance(mask, Ragged):
        shown["weight_version"] = tuple(map(_stretches, tags.rows(), mask.rows()))
    return Batch(batch.ids[places], batch.prompt_ids[places], shown)


def _stretches(tags: AnyArray, mask: AnyArray) -> list[list[int]]:
    """[version, tokens] of each stretch of a response that one version of the weights wrote."""
    wrote = tags[np.asarray(mask, dtype=np.bool_)].tolist()
    return [[version, len(list(run))] for version, run in groupby(wrote)]


def _short(column: Column) -> Column:
    if isinstance(column, Ragged):
        return np.asarray([row.sum() for row in column.rows()])
    return tuple(cut_text(value) for value in column) if isinstance(column, tuple) else column


def cut_text(value: object) -> object:
    """A text, or what holds texts (messages), without the middle of long ones."""
    if isinstance(value, str):
        left_out = len(value) - TEXT_CHARACTERS
        if left_out <= 0:
            return value
        half = TEXT_CHARACTERS // 2
        return f"{value[:half]} [… {left_out:,} characters …] {value[-half:]}"
    if isinstance(value, Mapping):
        return {key: cut_text(each) for key, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [cut_text(each) for each in cast("Sequence[object]", value)]
    return value


def _token_lengths(batch: Batch) -> IntArray | None:
    tokens = batch.columns.get("tokens")
    if isinstance(tokens, Ragged):
        return tokens.lengths
    return next((column.lengths for column in batch.columns.values() if isinstance(column, Ragged)), None)


def _nbytes(column: Column) -> int:
    """Bytes of the arrays of a column; texts are counted by their characters, other objects not at all."""
    if isinstance(column, Ragged):
        return column.values.nbytes + column.lengths.nbytes
    if isinstance(column, tuple):
        return sum(len(value) for value in column if isinstance(value, str))
    return column.nbytes
