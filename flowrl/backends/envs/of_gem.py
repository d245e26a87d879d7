"""`gem:ID`: an environment of GEM (Liu et al. 2025, "GEM: a gym for agentic LLMs"), which speaks text by itself.

GEM leaves part of what is to be read in `info`, for wrappers to put around the observation: it is put there. A state is
known by that part where it has one (the board), since the rest counts turns. GEM registers levels (`-easy`, `-hard`,
`-random`); an id without one is the first of its levels, with the flow's `args` over that level's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY

LEVELS = ("-easy", "-hard", "-random")
ARGUMENTS = {"boxes": "num_boxes"}
"""Other names for GEM's arguments: its games take any name and heed those they know."""


def names() -> Iterable[str]:
    bare = (id.removesuffix(level) for id in ENV_REGISTRY for level in LEVELS if id.endswith(level))
    return list(dict.fromkeys((*ENV_REGISTRY, *bare)))


def maker(id: str) -> Callable[..., Gem]:
    registered = next(each for each in (id, *(id + level for level in LEVELS)) if each in ENV_REGISTRY)
    return lambda **args: Gem(registered, args)


class Gem:
    """`args` go to gem.make."""

    def __init__(self, id: str, args: dict[str, Any]) -> None:
        self._env: Any = gem.make(id, **{ARGUMENTS.get(name, name): value for name, value in args.items()})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self._env.reset(seed=seed)
        return _whole(observation, info), {"state_key": _state(observation, info)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        told = {"state_key": _state(observation, info)}
        return _whole(observation, info), float(reward), bool(terminated), bool(truncated), told

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def _whole(observation: Any, info: dict[str, Any]) -> str:
    parts = (info.get("prefix"), observation, info.get("suffix"))
    return "\n".join(str(part).strip("\n") for part in parts if part) + "\n"


def _state(observation: Any, info: dict[str, Any]) -> str:
    return str(info.get("suffix") or observation)
