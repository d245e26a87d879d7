"""`gymnasium:ID`: an environment of Gymnasium as text.

What is seen is its drawing where it has one (`render_mode: ansi`, the player's cell in brackets), else the observation
written out. An action is a number, of which a text's first counts; a list of numbers as JSON for spaces of several; a
text as it stands. What is no action changes nothing and is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Discrete, Text

_PLAYER = re.compile(r"\x1b\[4\dm(.)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"-?\d+")


def names() -> Iterable[str]:
    return list(gymnasium.registry)


def maker(id: str) -> Callable[..., Gymnasium]:
    return lambda **args: Gymnasium(id, args)


class Gymnasium:
    """`args` go to gymnasium.make."""

    def __init__(self, id: str, args: dict[str, Any]) -> None:
        self._env: Any = gymnasium.make(id, **{**_drawn(id), **args})
        self._draws = self._env.render_mode == "ansi"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """`seed` makes the state to begin in and what happens on the way: Gymnasium has one stream for both."""
        observation, _ = self._env.reset(seed=seed)
        seen = self._seen(observation)
        return f"{self._asked()}\n{seen}\n", {"state_key": seen}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        chosen = self._chosen(action)
        if chosen is None:
            return f"That is no action. {self._asked()}\n", 0.0, False, False, {}
        observation, reward, terminated, truncated, _ = self._env.step(chosen)
        seen = self._seen(observation)
        return f"{seen}\n", float(reward), bool(terminated), bool(truncated), {"state_key": seen}

    def close(self) -> None:
        self._env.close()

    def _seen(self, observation: object) -> str:
        if not self._draws:
            return str(observation)
        return _COLOUR.sub("", _PLAYER.sub(r"[\1]", self._env.render())).strip("\n")

    def _asked(self) -> str:
        space = self._env.action_space
        if isinstance(space, Discrete):
            return f"Answer with an action: a number from {space.start} to {space.start + space.n - 1}."
        return "Answer with a text." if isinstance(space, Text) else f"Answer with an action of {space}, as JSON."

    def _chosen(self, text: str) -> Any:
        """The action; None if there is none."""
        space = self._env.action_space
        if isinstance(space, Text):
            return text
        if isinstance(space, Discrete):
            found = _NUMBER.search(text)
            number = None if found is None else int(found.group())
            return number if number is not None and space.contains(number) else None
        try:
            values = space.dtype.type(json.loads(text[text.index("[") : text.rindex("]") + 1]))
        except (ValueError, TypeError):
            return None
        return values if space.contains(values) else None


def _drawn(id: str) -> dict[str, str]:
    """`ansi` where the environment can draw itself as text."""
    spec = gymnasium.registry[id]
    entry = spec.entry_point
    made = load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(made, "metadata", {}).get("render_modes", [])
    return {"render_mode": "ansi"} if "ansi" in modes else {}
