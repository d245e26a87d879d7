"""Sokoban: push every box onto a target. RAGEN's second environment (Wang et al. 2025, arXiv:2504.20073, section 3.1).

Rooms are made by playing backwards: boxes stand on their targets and are pulled away at random, so that every room can
be solved (the way of gym-sokoban, after Racanière et al. 2017). Rewards are those of gym-sokoban: -0.1 for a move, +1
for a box that comes onto a target, -1 for one that leaves it, +10 when all are there.
"""

from __future__ import annotations

import random
from typing import Any

from flowrl.backends.envs.moves import STEPS, Cell, beside, moves_in

MOVE, ON, OFF, SOLVED = -0.1, 1.0, -1.0, 10.0
TRIES = 1000


class Sokoban:
    """`size`: rows and columns with the walls around; `boxes`: how many; `walls`: the share of the inner cells that are
    walls; `pulls`: moves of the backward play, the harder the more; `moves_per_turn`: moves that one turn may make;
    `any_text`: see moves.py."""

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        walls: float = 0.15,
        pulls: int = 12,
        moves_per_turn: int = 5,
        any_text: bool = False,
    ) -> None:
        self._size, self._boxes_wanted, self._share, self._pulls = size, boxes, walls, pulls
        self._moves, self._any_text = moves_per_turn, any_text
        self._walls: frozenset[Cell] = frozenset()
        self._targets: frozenset[Cell] = frozenset()
        self._boxes: frozenset[Cell] = frozenset()
        self._player: Cell = (0, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """`seed` makes the room: all samples of a prompt play the same one."""
        rng = random.Random(seed)
        for _ in range(TRIES):
            if self._lay_out(rng):
                return f"{RULES}\n{self._drawn()}\n", {"state_key": self._drawn()}
        raise ValueError(f"no room of size {self._size} has {self._boxes_wanted} boxes: make it larger")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for move in moves_in(action, self._moves, any_text=self._any_text):
            reward += self._go(move)
            if self._solved():
                break
        solved = self._solved()
        return f"{self._drawn()}\n", reward, solved, False, {"success": solved, "state_key": self._drawn()}

    def _solved(self) -> bool:
        return self._boxes == self._targets

    def _go(self, move: Cell) -> float:
        there, behind = beside(self._player, move), beside(beside(self._player, move), move)
        if there in self._walls or (there in self._boxes and behind in self._walls | self._boxes):
            return MOVE
        reward = MOVE
        if there in self._boxes:
            self._boxes = self._boxes - {there} | {behind}
            reward += ON * (behind in self._targets) + OFF * (there in self._targets)
        self._player = there
        return reward + SOLVED * self._solved()

    def _lay_out(self, rng: random.Random) -> bool:
        """A room, and boxes pulled away from their targets; false if none has moved, or there is no place."""
        inner = [(row, column) for row in range(1, self._size - 1) for column in range(1, self._size - 1)]
        edge = {(r, c) for r in range(self._size) for c in range(self._size)} - set(inner)
        self._walls = frozenset(edge | {cell for cell in inner if rng.random() < self._share})
        free = [cell for cell in inner if cell not in self._walls]
        if len(free) < self._boxes_wanted + 2:
            return False
        *boxes, self._player = rng.sample(free, self._boxes_wanted + 1)
        self._targets = self._boxes = frozenset(boxes)
        for _ in range(self._pulls * self._size):
            self._back(rng.choice(tuple(STEPS.values())))
        return not self._boxes & self._targets

    def _back(self, move: Cell) -> None:
        """One move of the backward play: the player steps, and a box behind it follows."""
        there, box = beside(self._player, move), beside(self._player, (-move[0], -move[1]))
        if there in self._walls | self._boxes:
            return
        if box in self._boxes:
            self._boxes = self._boxes - {box} | {self._player}
        self._player = there

    def _drawn(self) -> str:
        return "\n".join("".join(self._mark((r, c)) for c in range(self._size)) for r in range(self._size))

    def _mark(self, cell: Cell) -> str:
        on_target = cell in self._targets
        if cell in self._walls:
            return "#"
        if cell == self._player:
            return "S" if on_target else "P"
        if cell in self._boxes:
            return "*" if on_target else "X"
        return "O" if on_target else "_"


RULES = (
    "Push every box onto a target. # wall, _ floor, O target, X box, * box on target, P you, S you on target. "
    "Answer with moves: up, down, left, right."
)
