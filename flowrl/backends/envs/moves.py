"""Moves on a grid, read out of what a policy says.

Words `up`, `down`, `left`, `right` count in their order, within `<answer>…</answer>` if there is one; a text of nothing
but the letters u, d, l, r is read letter by letter. With `any_text` every character is a move, by its code: a policy
that has learnt nothing plays then, as in a rehearsal.
"""

from __future__ import annotations

import re

Cell = tuple[int, int]
"""Row and column, from the top left."""

STEPS: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_LETTERS = {name[0]: name for name in STEPS}
_WORDS = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)


def moves_in(text: str, most: int, *, any_text: bool = False) -> list[Cell]:
    """At most `most` moves."""
    if any_text:
        return [tuple(STEPS.values())[ord(character) % len(STEPS)] for character in text[:most]]
    answer = _ANSWER.search(text)
    text = answer.group(1) if answer else text
    letters = "".join(text.lower().split())
    if letters and set(letters) <= set(_LETTERS):
        names = [_LETTERS[letter] for letter in letters]
    else:
        names = [word.lower() for word in _WORDS.findall(text)]
    return [STEPS[name] for name in names[:most]]


def beside(cell: Cell, move: Cell) -> Cell:
    return cell[0] + move[0], cell[1] + move[1]
