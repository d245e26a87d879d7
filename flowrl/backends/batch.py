"""Batch: rows of the sample record as numpy columns, so that they travel through shared memory without copies.

A token field is `Ragged` (flat values and lengths). So is a turn field, with one value for each turn of the row: for
each run of true in its `loss_mask`, in order. A sample or prompt field is a numpy array of shape [rows, ...] or,
for str, messages and json, a tuple of Python values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length. `values` has shape [sum(lengths), ...]; `lengths` is int64 [rows]."""

    values: AnyArray
    lengths: IntArray

    def rows(self) -> list[AnyArray]:
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []

    def select(self, indices: Sequence[int] | IntArray) -> Ragged:
        rows = self.rows()
        picked = [rows[i] for i in indices]
        values = np.concatenate(picked) if picked else self.values[:0]
        return Ragged(values, self.lengths[np.asarray(indices, dtype=np.int64)])

    @staticmethod
    def of(rows: Sequence[AnyArray], dtype: npt.DTypeLike) -> Ragged:
        lengths = np.asarray([len(r) for r in rows], dtype=np.int64)
        values = np.concatenate([np.asarray(r, dtype=dtype) for r in rows]) if rows else np.zeros(0, dtype=dtype)
        return Ragged(values, lengths)


Column = Ragged | AnyArray | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with ids. For sample rows `ids` are sample ids and `prompt_ids` their prompts'; for prompt rows both agree.

    ids: int64 [rows], ascending and unique. A sample's id is prompt_id * 2**16 + its index among the prompt's samples.
    """

    ids: IntArray
    prompt_ids: IntArray
    columns: Mapping[str, Column] = field(default_factory=dict[str, Column])

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: Sequence[int] | IntArray) -> Batch:
        index = np.asarray(indices, dtype=np.int64)
        return Batch(self.ids[index], self.prompt_ids[index], {k: take(v, index) for k, v in self.columns.items()})

    def only(self, names: Collection[str]) -> Batch:
        """The columns that have one of these names."""
        return Batch(self.ids, self.prompt_ids, {name: c for name, c in self.columns.items() if name in names})

    def ragged(self, name: str) -> Ragged:
        column = self.columns[name]
        assert isinstance(column, Ragged), name
        return column

    def array(self, name: str) -> AnyArray:
        column = self.columns[name]
        assert isinstance(column, np.ndarray), name
        return column

    def objects(self, name: str) -> tuple[object, ...]:
        column = self.columns[name]
        assert isinstance(column, tuple), name
        return column


def images_of(batch: Batch) -> tuple[tuple[bytes, ...], ...] | None:
    """The column `images`, each row's as files' bytes; None where the op reads none."""
    return cast("tuple[tuple[bytes, ...], ...]", batch.objects("images")) if "images" in batch.columns else None


SAMPLE_ID_BITS = 16


def sample_ids(batch: Batch, samples: int) -> IntArray:
    """Ids of the samples of prompt rows, `samples` each: int64 [rows x samples]. Rows that are samples already (an env
    made their prompts) keep their ids."""
    if samples == 1 and not np.array_equal(batch.ids, batch.prompt_ids):
        return batch.ids
    first = batch.prompt_ids << SAMPLE_ID_BITS
    return (first[:, None] + np.arange(samples, dtype=np.int64)[None]).reshape(-1)


def take(column: Column, index: IntArray) -> Column:
    """Rows `index` of a column, in that order."""
    if isinstance(column, Ragged):
        return column.select(index)
    if isinstance(column, tuple):
        return tuple(column[i] for i in index)
    return column[index]


def concat(columns: Sequence[Column]) -> Column:
    """Rows of all columns, one after another. All must be of one form."""
    first = columns[0]
    if isinstance(first, Ragged):
        parts = [c for c in columns if isinstance(c, Ragged)]
        return Ragged(np.concatenate([c.values for c in parts]), np.concatenate([c.lengths for c in parts]))
    if isinstance(first, tuple):
        return tuple(value for c in columns for value in c)  # type: ignore[union-attr]
    return np.concatenate(columns)  # type: ignore[arg-type]


def join(batches: Sequence[Batch]) -> Batch:
    """Rows of all batches in ascending order of id."""
    whole = Batch(
        np.concatenate([b.ids for b in batches]),
        np.concatenate([b.prompt_ids for b in batches]),
        {name: concat([b.columns[name] for b in batches]) for name in batches[0].columns},
    )
    return whole.select(np.argsort(whole.ids, kind="stable"))
