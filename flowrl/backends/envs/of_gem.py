"""`gem:ID`: an environment of GEM (Liu et al. 2025, "GEM: a gym for agentic LLMs"), which speaks text by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY


def names() -> Iterable[str]:
    return list(ENV_REGISTRY)


def maker(id: str) -> Callable[..., Any]:
    return lambda **args: gem.make(id, **args)
