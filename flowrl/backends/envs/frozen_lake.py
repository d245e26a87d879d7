"""FrozenLake: cross the ice to the goal. RAGEN's third environment (Wang et al. 2025, arXiv:2504.20073, section 3.1),
with the rules of Gymnasium's FrozenLake-v1: reward 1 at the goal, a hole ends the episode, and on slippery ice a step
goes to either side as often as ahead.
"""

from __future__ import annotations

import random
from typing import Any

from flowrl.backends.envs.moves import STEPS, Cell, beside, moves_in

TRIES = 1000


class FrozenLake:
    """`size`: rows and columns; `holes`: the share of cells that are holes; `slip`: the chance that a step goes aside
    (2/3 is Gymnasium's slippery ice); `moves_per_turn`: moves that one turn may make; `rules`: whether the first
    message tells them; `any_text`: see moves.py."""

    def __init__(
        self,
        size: int = 4,
        holes: float = 0.2,
        slip: float = 2 / 3,
        moves_per_turn: int = 1,
        rules: bool = True,
        any_text: bool = False,
    ) -> None:
        self._size, self._share, self._slip, self._moves = size, holes, slip, moves_per_turn
        self._rules, self._any_text = rules, any_text
        self._holes: frozenset[Cell] = frozenset()
        self._goal: Cell = (size - 1, size - 1)
        self._player: Cell = (0, 0)
        self._luck = random.Random(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """`seed` makes the lake; the sample's own seed says where steps slip."""
        rng = random.Random(seed)
        self._luck = random.Random((options or {}).get("sample_seed", seed))
        cells = [(row, column) for row in range(self._size) for column in range(self._size)]
        self._player = (0, 0)
        for _ in range(TRIES):
            ice = {cell for cell in cells if rng.random() >= self._share} | {self._player, self._goal}
            self._holes = frozenset(cells) - ice
            if self._can_be_crossed():
                rules = f"{RULES}\n" if self._rules else ""
                return f"{rules}{self._drawn()}\n", {"state_key": self._drawn()}
        raise ValueError(f"no lake of size {self._size} with the share {self._share} of holes can be crossed")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        for move in moves_in(action, self._moves, any_text=self._any_text):
            self._go(move)
            if self._player in self._holes or self._player == self._goal:
                break
        won = self._player == self._goal
        drawn = self._drawn()
        return f"{drawn}\n", float(won), won or self._player in self._holes, False, {"success": won, "state_key": drawn}

    def _go(self, move: Cell) -> None:
        if self._luck.random() < self._slip:
            move = self._luck.choice([(move[1], move[0]), (-move[1], -move[0])])
        row, column = beside(self._player, move)
        self._player = (min(max(row, 0), self._size - 1), min(max(column, 0), self._size - 1))

    def _can_be_crossed(self) -> bool:
        seen, ahead = {(0, 0)}, [(0, 0)]
        while ahead:
            cell = ahead.pop()
            for move in STEPS.values():
                there = beside(cell, move)
                inside = all(0 <= part < self._size for part in there)
                if inside and there not in self._holes and there not in seen:
                    seen.add(there)
                    ahead.append(there)
        return self._goal in seen

    def _drawn(self) -> str:
        return "\n".join("".join(self._mark((r, c)) for c in range(self._size)) for r in range(self._size))

    def _mark(self, cell: Cell) -> str:
        if cell == self._player:
            return "X" if cell in self._holes else "P"
        if cell in self._holes:
            return "O"
        return "G" if cell == self._goal else "_"


RULES = (
    "Cross the lake to the goal. P you, _ ice, O hole, G goal. The ice may be slippery. "
    "Answer with a move: up, down, left or right."
)
