"""A bandit of two arms that have names: RAGEN's first environment (Wang et al. 2025, arXiv:2504.20073, section 3.1).

One arm pays little and surely, the other seldom and much, and more on average. One turn: the arm that is named first is
pulled. A policy that has not learnt to take the risk stays with the sure arm.
"""

from __future__ import annotations

import random
from typing import Any


class Bandit:
    """The defaults are RAGEN's: `phoenix` pays 0.1, `dragon` pays 1 with the chance 0.25."""

    def __init__(
        self,
        sure: str = "phoenix",
        risky: str = "dragon",
        sure_reward: float = 0.1,
        risky_reward: float = 1.0,
        chance: float = 0.25,
        question: str = "There are two arms, {first} and {second}. Name the one to pull.\n",
    ) -> None:
        self._sure, self._risky = sure, risky
        self._sure_reward, self._risky_reward, self._chance = sure_reward, risky_reward, chance
        self._question = question
        self._luck = random.Random(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """`seed` says in which order the arms are named; the sample's own seed what they will pay."""
        first, second = random.Random(seed).sample((self._sure, self._risky), 2)
        self._luck = random.Random((options or {}).get("sample_seed", seed))
        return self._question.format(first=first, second=second), {"state_key": first}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text = action.lower()
        named = min((arm for arm in (self._sure, self._risky) if arm in text), key=text.index, default=None)
        pays = self._luck.random() < self._chance
        reward = {None: 0.0, self._sure: self._sure_reward, self._risky: self._risky_reward * pays}[named]
        return "", float(reward), True, False, {"success": named == self._risky}
