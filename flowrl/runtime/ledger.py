"""The sample ledger: which prompts each step has trained on, and with weights of which version they were answered.

One line of ledger.jsonl for each step and data set. A chain of digests over the lines stands in every checkpoint, so a
resumed run knows that the file it goes on from is the one the checkpoint belongs to: no prompt is lost or taken twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from flowrl.diag.diagnostic import InternalError
from flowrl.runtime.draws import Fates
from flowrl.runtime.jsonl import JsonLines, read_lines
from flowrl.runtime.state import Trained

START = ""
Runs = tuple[tuple[int, int], ...]
"""Half-open runs of ids, ascending."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that one step trained on. `prompts`: runs [first, last + 1) of prompt ids, ascending."""

    stage: str
    step: int
    data: str
    prompts: tuple[tuple[int, int], ...]
    samples: int
    made_with: int | None
    """Weight version of the oldest token of their answers; null where the answers are the data set's."""
    newest: int | None = None
    """Weight version of the newest token of their answers."""
    version: int
    """Weight version that was the newest when the step's training began."""
    dropped: Runs | UnsetType = UNSET
    """Prompts that the step drew and filters took away. With `prompts`, `masked` and `surplus` these are all that it
    drew; unset where no filter decides on rows."""
    masked: Runs | UnsetType = UNSET
    """Prompts that filters left and kept out of the loss with all of their samples; unset where none masks."""
    surplus: Runs | UnsetType = UNSET
    """Prompts that filters left and the step did not need."""
    rounds: int | UnsetType = UNSET
    """Rounds in which the step drew its prompts; unset without refill."""


def entries(stage: str, step: int, trained: Sequence[Trained], fates: Sequence[Fates] = ()) -> tuple[LedgerEntry, ...]:
    """What a step's updates took, once for each data set: minibatches and epochs together, trainers together; and what
    became of the other prompts that it drew."""
    by_data: dict[str, list[Trained]] = {}
    for rows in trained:
        by_data.setdefault(rows.data, []).append(rows)
    fate_of = {each.data: each for each in fates}
    return tuple(_entry(stage, step, data, many, fate_of.get(data)) for data, many in sorted(by_data.items()))


def _entry(stage: str, step: int, data: str, many: Sequence[Trained], fate: Fates | None) -> LedgerEntry:
    taken = [i for rows in many for i in rows.prompt_ids.tolist()]
    return LedgerEntry(
        stage=stage,
        step=step,
        data=data,
        prompts=runs(taken),
        samples=len({i for rows in many for i in rows.ids.tolist()}),
        made_with=min((rows.made_with for rows in many if rows.made_with is not None), default=None),
        newest=max((rows.newest for rows in many if rows.newest is not None), default=None),
        version=max(rows.version for rows in many),
        **_others(fate, taken),
    )


def _others(fate: Fates | None, taken: Sequence[int]) -> dict[str, Any]:
    """What became of the prompts that were drawn and not trained on."""
    if fate is None:
        return {}
    surplus = set(fate.surplus.tolist()).difference(taken)
    masked = set(fate.kept.tolist()).difference(taken, surplus) if fate.masks else set[int]()
    found: dict[str, Any] = {"dropped": runs(set(fate.drawn.tolist()).difference(taken, surplus, masked))}
    found |= {"masked": runs(masked)} if fate.masks else {}
    return found if fate.rounds is None else {**found, "surplus": runs(surplus), "rounds": fate.rounds}


def runs(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending half-open runs that cover exactly `ids`."""
    found: list[tuple[int, int]] = []
    for i in sorted(set(ids)):
        if found and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1)
        else:
            found.append((i, i + 1))
    return tuple(found)


class Ledger:
    """ledger.jsonl of a run, added to step by step."""

    def __init__(self, path: Path) -> None:
        self.digest, self._seen = _replay(read_lines(path))
        self._lines = JsonLines(path)

    def add(self, new: Sequence[LedgerEntry]) -> None:
        """Raises InternalError if a prompt has been drawn in an earlier step of the stage."""
        for entry in new:
            self._require_new(entry)
            self.digest = _chained(self.digest, msgspec.to_builtins(entry))
        self._lines.add(msgspec.to_builtins(entry) for entry in new)

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()

    def _require_new(self, entry: LedgerEntry) -> None:
        others = (entry.dropped, entry.masked, entry.surplus)
        drawn = _union(entry.prompts, [run for runs in others for run in runs or ()])
        if not drawn:
            return
        key = (entry.stage, entry.data)
        seen = self._seen.get(key, ())
        twice = next((start for start, _ in _common(seen, drawn)), None)
        if twice is not None:
            raise InternalError(f"step {entry.step}: prompt {twice} of `{entry.data}` comes a second time")
        self._seen[key] = _union(seen, drawn)


def digest_of(path: Path) -> str:
    """The chained digest of a ledger's lines."""
    return _replay(read_lines(path))[0]


def _replay(lines: Iterable[dict[str, Any]]) -> tuple[str, dict[tuple[str, str], Runs]]:
    digest, seen = START, dict[tuple[str, str], Runs]()
    for line in lines:
        digest = _chained(digest, line)
        key = (line["stage"], line["data"])
        drawn = [run for name in ("prompts", "dropped", "masked", "surplus") for run in line.get(name, ())]
        seen[key] = _union(seen.get(key, ()), [(start, stop) for start, stop in drawn])
    return digest, seen


def _common(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Runs:
    """What two lists of runs have in common."""
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return tuple((start, stop) for start, stop in pairs if start < stop)


def _union(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Runs:
    """Both together, neighbours joined: few, as prompts are taken nearly in their order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted((*some, *others)):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return tuple(found)


def _chained(digest: str, line: dict[str, Any]) -> str:
    return hashlib.sha256(digest.encode() + msgspec.json.encode(line, order="sorted")).hexdigest()
