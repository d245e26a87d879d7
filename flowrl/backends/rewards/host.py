"""The backend `function` of rewards: what a reward without a model is, by the flavour of its op."""

from __future__ import annotations

from flowrl.backends.contract import RankSetup, Reward
from flowrl.backends.rewards.combined import CombinedReward
from flowrl.backends.rewards.function import FunctionReward
from flowrl.backends.rewards.sandbox import SandboxReward
from flowrl.graph.params import ScoreParams


def host_reward(setup: RankSetup) -> Reward:
    """A rank of a reward that runs on the host."""
    flavours = {op.params.flavour for op in setup.ops if isinstance(op.params, ScoreParams)}
    if flavours == {"sandbox"}:
        return SandboxReward(setup)
    return CombinedReward() if flavours == {"combine"} else FunctionReward(setup)
