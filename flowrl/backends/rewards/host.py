"""The backend `function` of rewards: what a reward without a model is, by the flavour of its op."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.backends.contract import RankSetup, Reward
from flowrl.backends.rewards.combined import CombinedReward
from flowrl.backends.rewards.function import FunctionReward
from flowrl.backends.rewards.routed import RoutedReward
from flowrl.backends.rewards.sandbox import SandboxReward
from flowrl.graph.params import ScoreParams

_FLAVOURS: dict[str, Callable[[RankSetup], Reward]] = {
    "combine": lambda setup: CombinedReward(),
    "router": lambda setup: RoutedReward(),
    "sandbox": SandboxReward,
    "function": FunctionReward,
}


def host_reward(setup: RankSetup) -> Reward:
    """A rank of a reward that runs on the host; all ops of a role have its flavour."""
    flavour = next((op.params.flavour for op in setup.ops if isinstance(op.params, ScoreParams)), "function")
    return _FLAVOURS[flavour](setup)
