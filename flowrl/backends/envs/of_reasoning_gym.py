"""`reasoning_gym:DATASET`: a procedural task of reasoning-gym, with its own verifier, as an episode of one turn.

The prompt's seed makes the task. The answer is what stands in `<answer>…</answer>`, else all that was said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def names() -> Iterable[str]:
    return list(DATASETS)


def maker(id: str) -> Callable[..., ReasoningGym]:
    return lambda **args: ReasoningGym(id, args)


class ReasoningGym:
    """`args` are the task's own (reasoning_gym.create_dataset)."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        self._name, self._args = name, args
        self._tasks: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._tasks = reasoning_gym.create_dataset(self._name, size=1, seed=seed, **self._args)
        return f"{self._tasks[0]['question']}\n", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        found = _ANSWER.search(action)
        answer = (found.group(1) if found else action).strip()
        score = float(self._tasks.score_answer(answer, self._tasks[0]))
        return "", score, True, False, {"success": score >= 1.0}
