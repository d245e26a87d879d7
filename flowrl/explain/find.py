"""Which entry of a plan a key means: a whole key, or an end or a part of it that only one has.

`train.actor_train.update.activations` is whole, `update.activations` an end, `train.activations` a part. Case does not
count, and `_` stands for a space, so that no key needs quotes but those of edges. Takes entries, gives one or says why
not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flowrl.diag.diagnostic import FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.explain.book import Book, Entry

MOST_LISTED = 12
WHOLE, UNSTAGED, END, PART = range(4)
"""How well a key is met: as it stands, but for its stage, by its end, by words of it in their order."""


def find(book: Book, asked: str, plan: str) -> Entry:
    """The entry that `asked` means in a plan called `plan`. Raises FlowError: FR0720 for a key that nothing has, with
    near ones, FR0721 for one that several have, with all of them."""
    met = {key: rank for key in book if (rank := _rank(key, asked)) is not None}
    best = min(met.values(), default=None)
    found = [key for key, rank in met.items() if rank == best]
    if not found:
        raise FlowError(diagnose("FR0720", key=asked, plan=plan, helps=_near(book, asked)))
    if len(found) > 1:
        notes = [f"  {key}" for key in found[:MOST_LISTED]]
        notes += [f"  and {len(found) - MOST_LISTED} more"] if len(found) > MOST_LISTED else []
        raise FlowError(diagnose("FR0721", key=asked, plan=plan, count=len(found), notes=notes))
    return book[found[0]]


def _rank(key: str, asked: str) -> int | None:
    have, want = _plain(key), _plain(asked)
    if not want:
        return None
    if have == want:
        return WHOLE
    unstaged = have.partition("/")[2] or have
    if unstaged == want:
        return UNSTAGED
    if have.endswith(("." + want, "/" + want)):
        return END
    return PART if _is_part(_words(have), _words(want)) else None


def _is_part(have: Sequence[str], want: Sequence[str]) -> bool:
    """Whether the words are in `have`, in their order, and its last is the last of them."""
    if not want or not have or have[-1] != want[-1]:
        return False
    rest = iter(have)
    return all(word in rest for word in want)


def _plain(key: str) -> str:
    return re.sub(r"[\s_]+", " ", key.strip().lower())


def _words(key: str) -> list[str]:
    return [word for word in re.split(r"[./]", key) if word]


def _near(book: Iterable[str], asked: str) -> list[Help]:
    """Keys that look like it, whole or in their last word."""
    keys = list(book)
    plain = {_plain(key): key for key in reversed(keys)}
    near = [plain[name] for name in near_names(_plain(asked), plain)]
    if not near:
        last = {_words(_plain(key))[-1]: key for key in reversed(keys)}
        near = [last[name] for name in near_names((_words(_plain(asked)) or [""])[-1], last)]
    return [] if not near else [Help(text=f"a key with a near name exists: {', '.join(f'`{key}`' for key in near)}")]
