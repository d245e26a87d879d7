"""Ages: the weight versions behind the rows of a step, from what their generator has tagged its tokens with.

Takes the parts that completions bring and the rows that an update has taken; gives versions. Counts only, no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flowrl.backends.batch import Batch, IntArray, Ragged
from flowrl.runtime.launchers.contract import Part, Versions


class Ages:
    """By call of generate and step, until the step is over."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        self._tokens: dict[tuple[str, int], dict[int, int]] = {}

    def add(self, op: str, step: int, parts: Sequence[Part], held: int) -> None:
        """`held`: the version of rows without tags."""
        rows = self._rows.setdefault((op, step), {})
        tokens = self._tokens.setdefault((op, step), {})
        for part in parts:
            tags = part.versions or Versions(*(np.full(len(part.ids), held, dtype=np.int64) for _ in range(2)))
            pairs = zip(tags.oldest.tolist(), tags.newest.tolist(), strict=True)
            rows.update(zip(part.ids.tolist(), pairs, strict=True))
            for version, count in part.tokens_by_version.items():
                tokens[version] = tokens.get(version, 0) + count

    def of(self, op: str | None, step: int, ids: IntArray) -> Versions | None:
        """Of rows `ids`; None where no generator made them."""
        known = self._rows.get((op or "", step))
        if known is None:
            return None
        pairs = [known[id] for id in ids.tolist()]
        return Versions(*(np.asarray([pair[end] for pair in pairs], dtype=np.int64) for end in range(2)))

    def tokens(self, op: str | None, step: int) -> Mapping[int, int]:
        """Tokens that the policy wrote under each version, of the rows of a step."""
        return self._tokens.get((op or "", step), {})

    def oldest(self, op: str, step: int, id: int) -> int | None:
        """The version of the oldest token of a row; None if the row is not known."""
        pair = self._rows.get((op, step), {}).get(id)
        return None if pair is None else pair[0]

    def step_done(self, step: int) -> None:
        for kept in (self._rows, self._tokens):
            for key in [key for key in kept if key[1] <= step]:
                del kept[key]


def versions_in(batch: Batch) -> tuple[Versions | None, dict[int, int]]:
    """Versions of rows that have tagged tokens, and how many tokens each version has; of what the policy wrote, where
    the rows tell it apart from prompts."""
    tags, mask = batch.columns.get("weight_version"), batch.columns.get("loss_mask")
    if not isinstance(tags, Ragged):
        return None, {}
    wrote = np.asarray(mask.values, dtype=np.bool_) if isinstance(mask, Ragged) else np.ones(len(tags.values), np.bool_)
    values = np.asarray(tags.values, dtype=np.int64)
    numbers, counts = np.unique(values[wrote], return_counts=True)
    by_version = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    rows = np.repeat(np.arange(len(tags.lengths)), tags.lengths)[wrote]
    latest = int(values.max()) if len(values) else 0
    oldest, newest = np.full(len(tags.lengths), latest), np.full(len(tags.lengths), -1)
    np.minimum.at(oldest, rows, values[wrote])
    np.maximum.at(newest, rows, values[wrote])
    return Versions(oldest, np.where(newest < 0, oldest, newest)), by_version
