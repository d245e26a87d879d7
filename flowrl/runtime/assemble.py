"""The join that makes a rank's input: columns of several records → one Batch with the slots of an op as its columns.

Pure. Takes rows as ranks made them (a part per rank and firing) and the ids wanted; knows nothing of ops or roles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray, Ragged, concat, take
from flowrl.diag.diagnostic import InternalError


@dataclass(frozen=True, slots=True)
class Source:
    """What fills one slot: column `field` of all `batches` together. With `by_prompt` a row goes to every row of the
    reader that has its prompt id; otherwise to the row with its id."""

    slot: str
    field: str
    batches: tuple[Batch, ...]
    by_prompt: bool = False


def assemble(sources: Sequence[Source], ids: IntArray | None = None, partial: Collection[str] = ()) -> Batch:
    """Rows `ids` (int64, ascending; None: all that every source joined by id has) with one column for each source.
    Slots of `partial` need not have every row: where they have none a number is NaN, and a ragged row empty.

    Raises InternalError if a wanted row is missing or a source has an id twice.
    """
    keyed = [_Keyed(source) for source in sources]
    if partial and ids is not None:
        return _with_partial(keyed, ids, partial)
    by_id = [k for k in keyed if not k.source.by_prompt]
    if not by_id:
        return _rows_by_prompt(keyed, ids)
    if ids is None:
        ids = _common(by_id)
    prompt_ids = by_id[0].prompt_ids[by_id[0].places(ids)]
    columns = {k.source.slot: k.column(prompt_ids if k.source.by_prompt else ids) for k in keyed}
    return Batch(ids, prompt_ids, columns)


class _Keyed:
    """A source with its keys sorted, for look-ups."""

    def __init__(self, source: Source) -> None:
        self.source = source
        parts = source.batches
        keys = [part.prompt_ids if source.by_prompt else part.ids for part in parts]
        self.keys: IntArray = np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64)
        prompts = [part.prompt_ids for part in parts]
        self.prompt_ids: IntArray = np.concatenate(prompts) if prompts else np.zeros(0, dtype=np.int64)
        self.order = np.argsort(self.keys, kind="stable")
        self.sorted = self.keys[self.order]
        if len(self.sorted) > 1 and bool(np.any(self.sorted[1:] == self.sorted[:-1])):
            raise InternalError(f"slot `{source.slot}`: two rows of `{source.field}` have one id")

    def places(self, wanted: IntArray) -> IntArray:
        """Row numbers, in the order of `wanted`."""
        at = np.searchsorted(self.sorted, wanted)
        found = at < len(self.sorted)
        found[found] = self.sorted[at[found]] == wanted[found]
        if not bool(np.all(found)):
            missing = ", ".join(str(i) for i in wanted[~found][:5])
            raise InternalError(f"slot `{self.source.slot}`: no row of `{self.source.field}` has the id {missing}")
        return self.order[at]

    def column(self, wanted: IntArray) -> Column:
        places = self.places(wanted)
        columns = [part.columns[self.source.field] for part in self.source.batches]
        whole = columns[0] if len(columns) == 1 else concat(columns)
        if len(places) == len(self.keys) and np.array_equal(places, np.arange(len(places))):
            return whole
        return take(whole, places)


def _with_partial(keyed: Sequence[_Keyed], ids: IntArray, partial: Collection[str]) -> Batch:
    """Rows of parts, each of which has some of them. Samples, whose prompts their ids tell."""
    prompt_ids = ids >> SAMPLE_ID_BITS
    columns: dict[str, Column] = {}
    for each in keyed:
        wanted = prompt_ids if each.source.by_prompt else ids
        if each.source.slot not in partial:
            columns[each.source.slot] = each.column(wanted)
            continue
        there = np.isin(wanted, each.keys)
        columns[each.source.slot] = _spread(each.column(wanted[there]) if there.any() else None, there)
    return Batch(ids, prompt_ids, columns)


def _spread(column: Column | None, there: npt.NDArray[np.bool_]) -> Column:
    """A column of some rows as one of all: NaN, or an empty row, where there is none."""
    if isinstance(column, Ragged):
        lengths = np.zeros(len(there), dtype=np.int64)
        lengths[there] = column.lengths
        return Ragged(column.values, lengths)
    whole = np.full(len(there), np.nan, dtype=np.float32)
    if isinstance(column, np.ndarray):
        whole[there] = column.astype(np.float32)
    return whole


def _common(by_id: Sequence[_Keyed]) -> IntArray:
    ids = by_id[0].sorted
    for other in by_id[1:]:
        ids = np.intersect1d(ids, other.sorted, assume_unique=True)
    return ids


def _rows_by_prompt(keyed: Sequence[_Keyed], ids: IntArray | None) -> Batch:
    """No source is joined by id: the reader's rows are prompts."""
    if ids is None:
        ids = _common(keyed) if keyed else np.zeros(0, dtype=np.int64)
    return Batch(ids, ids, {k.source.slot: k.column(ids) for k in keyed})
