"""A small flow whose groups a filter decides on, and fake ranks whose rewards say which of them have a spread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.filters.rule import RuleFilter
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Plan
from flowrl.spec import load
from tests.runtime.fakes import FakeEstimator, FakeGenerator, FakeReward, make_fake
from tests.runtime.invariant_flows import OVER

Keeps = Callable[[int], bool]
FLOW = """
flowrl: 1
name: dapo
roles:
  actor_train: {model: policy, backend: fsdp, optimizer: {lr: 1.0e-2}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 6}}
  reward: {function: "fake.py:fake"}
  length: {kind: reward, function: "fake.py:fake"}
  informative: INFORMATIVE
  advantage: {estimator: grpo, inputs: {rewards: reward.rewards}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, length.score
  - reward.score -> informative.select
  - informative.select, length.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - SYNC
"""


def plan_of(
    folder: Path,
    step: str,
    *,
    steps: int = 3,
    more: str = "",
    pools: str = "one: [actor_train, actor_infer]",
    sync: str = "actor_train => actor_infer",
    informative: str = "{kind: filter, rule: zero_spread, by: reward.rewards}",
) -> Plan:
    fake = str(Path(__file__).parent / "fake_rewards.py")
    entries = ", ".join(f"{name}: {{gpus: 1, roles: {roles}}}" for name, _, roles in _parted(pools))
    text = FLOW.replace("fake.py", fake).replace("INFORMATIVE", informative).replace("SYNC", sync) + OVER.replace(
        "steps: 4, checkpoint_every_steps: 4", f"steps: {steps}"
    )
    text += f"step: {{{step}}}\n{more}"
    path = folder / "flow.yaml"
    path.write_text(f"{text}placement: {{pools: {{{entries}}}}}\n")
    return compile_spec(load(path))


def _parted(pools: str) -> list[tuple[str, str, str]]:
    return [each.partition(": ") for each in pools.split("; ")]


def ranks(keeps: Keeps) -> Callable[[RankSetup], object]:
    """The fakes, with rewards that have a spread for the prompts that `keeps` says, and the real filter."""

    class Rewards(FakeReward):
        def call(self, call: Call, batch: Batch) -> Result:
            spread = [float(keeps(p)) * (i % 2) for p, i in zip(batch.prompt_ids, batch.ids, strict=True)]
            rewards = np.asarray(spread, dtype=np.float32)
            return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": rewards}), {})

        def load(self) -> None:
            return

        offload = load

    class Generator(FakeGenerator):
        def call(self, call: Call, batch: Batch) -> Result:
            made = super().call(call, batch)
            assert made.batch is not None
            tokens = made.batch.ragged("tokens")
            mask = Ragged(np.ones(len(tokens.values), dtype=np.bool_), tokens.lengths)
            columns = {**made.batch.columns, "loss_mask": mask, "rollout_log_probs": tokens}
            return Result(Batch(made.batch.ids, made.batch.prompt_ids, columns), made.metrics)

    class Estimator(FakeEstimator):
        def call(self, call: Call, batch: Batch) -> Result:
            columns = {"rewards": batch.array("rewards"), "tokens": batch.ragged("loss_mask")}
            return super().call(call, Batch(batch.ids, batch.prompt_ids, columns))

    def make(setup: RankSetup) -> object:
        own = {Kind.FILTER: RuleFilter, Kind.GENERATOR: Generator, Kind.ESTIMATOR: Estimator}
        if setup.role.kind in own:
            return own[setup.role.kind](setup)
        return Rewards(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)

    return make
