"""The backend `function` of rewards: what a reward without a model is, by the flavour of its op."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.backends.contract import RankSetup, Reward
from flowrl.backends.rewards.combined import CombinedReward
from flowrl.backends.rewards.function import FunctionReward
from flowrl.backends.rewards.judge import JudgeReward
from flowrl.backends.rewards.routed import RoutedReward
from flowrl.backends.rewards.sandbox import SandboxReward
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.params import ScoreParams

_FLAVOURS: dict[str, Callable[[RankSetup], Reward]] = {
    "judge": JudgeReward,
    "combine": lambda setup: CombinedReward(),
    "router": lambda setup: RoutedReward(),
    "sandbox": SandboxReward,
    "function": FunctionReward,
}


def host_reward(setup: RankSetup) -> Reward:
    """A rank of a reward that runs on the host; all ops of a role have its flavour."""
    flavour = next((op.params.flavour for op in setup.ops if isinstance(op.params, ScoreParams)), "function")
    return _FLAVOURS[flavour](setup)


def asked_reward(setup: RankSetup) -> Reward:
    """A rank of a reward on the backend of a generator: a judge that asks a model of its own."""
    if all(isinstance(op.params, ScoreParams) and op.params.flavour != "judge" for op in setup.ops):
        role = setup.role
        what = f"`{role.name}`: a reward model on backend `{role.backend}`"
        raise FlowError(diagnose("FR0801", role.spans.get("backend", role.span), what=what, known="`fsdp`"))
    return JudgeReward(setup)
