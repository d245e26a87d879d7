"""A fake generator that plays episodes, and flows for it: what it says is made of its seed, its weight and its turn.

Environments are real ones. Turns take as many steps as they have tokens, so that episodes come apart from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, IntArray, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.envs.turns import Heard, Said
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Plan
from flowrl.spec import load
from tests.runtime.fakes import FakeEstimator, FakeGenerator, fake_number, make_fake

WORDS = ("up", "down", "left", "right")
TALK = """\
import os

class Debate:
    def reset(self, *, seed, options):
        self.seed, self.turns = seed, 0
        return f"case {seed}", {"agent": "alice"}

    def step(self, action):
        self.turns += 1
        if self.seed % 3 == 0 and self.turns == 2 and action.endswith("left"):
            os._exit(3)
        agent = ("alice", "bob")[self.turns % 2]
        return f"{self.turns} {action}!", float(len(action)), self.turns == 4, False, {"agent": agent}
"""
DEBATE = """\
flowrl: 1
name: debate
cluster: 4xcpu
models:
  policy: {source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, kv_heads: 2,
                    ffn_size: 32, max_positions: 192}, dtype: float32}
data:
  train: {seeds: 64}
  val: {seeds: 3, order: sequential}
roles:
  alice_train: {kind: trainer, model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-2}, update: {loss: ppo}}
  alice: {kind: generator, model: policy, backend: hf, generate: {max_response_tokens: 60, max_context_tokens: 90},
          generate@val: {samples_per_prompt: 1}}
  bob: {kind: generator, model: policy, backend: hf, generate: {max_response_tokens: 60, max_context_tokens: 90},
        generate@val: {samples_per_prompt: 1}}
  debate: {kind: env, env: "talk.py:Debate", max_turns: 3, parallel: 3, on_error: default}
  advantage: {kind: estimator, estimator: grpo}
edges:
  - data.train -> debate.reset
  - alice.generate, bob.generate <-> debate.step
  - alice.generate -> advantage.estimate
  - advantage.estimate -> alice_train.update
  - alice_train => alice
  - {edge: data.val -> debate.reset@val, every_steps: 2}
  - alice.generate@val, bob.generate@val <-> debate.step@val
step: {prompts: 4, samples_per_prompt: 3, updates: 2}
run: {steps: 3, seed: 3, checkpoint_every_steps: 2, samples_logged: 4}
"""


class FakeSpeaker(FakeGenerator):
    """One that decodes turns apart, as vLLM does."""

    in_rounds = False

    def begin(self, call: Call, ids: IntArray, prompts: Sequence[object] | None) -> None:
        self._speaking = call
        self._texts: dict[int, list[str]] = {id: [] for id in ids.tolist()}
        self._heard: dict[int, list[str]] = {id: [] for id in ids.tolist()}
        self._left: dict[int, list[int]] = {}

    def speak(self, heard: Sequence[Heard], steps: int) -> list[Said]:
        for each in heard:
            assert each.id not in self._left, "it has not answered yet"
            self._heard[each.id].append(str(each.observation))
            said = (self._speaking.seed, self._speaking.op.id, each.id, self.weight, self._heard[each.id])
            self._left[each.id] = [int(1000 * fake_number(said, t)) for t in range(1 + int(40 * fake_number(said)))]
        for _ in range(steps):
            if done := [id for id, tokens in self._left.items() if len(tokens) == 1]:
                return [self._say(id) for id in done]
            self._left = {id: tokens[1:] for id, tokens in self._left.items()}
        return []

    def _say(self, id: int) -> Said:
        word = WORDS[self._left.pop(id)[0] % len(WORDS)]
        self._texts[id].append(f"{len(self._heard[id])} {word}")
        return Said(id, self._texts[id][-1])

    def finish(self, extra: Batch) -> Result:
        """A token is a character of what was said."""
        left = extra.select(np.flatnonzero(np.isin(extra.ids, list(self._texts))))
        texts = ["".join(self._texts[id]) or "-" for id in left.ids.tolist()]
        tokens = Ragged.of([np.asarray(list(text.encode())) for text in texts], np.int32)
        versions = Ragged(np.full(len(tokens.values), self.version, dtype=np.int32), tokens.lengths)
        columns = {"tokens": tokens, "response": tuple(texts), "weight_version": versions} | dict(left.columns)
        columns |= {"loss_mask": Ragged(np.ones(len(tokens.values), dtype=np.bool_), tokens.lengths)}
        columns |= {"rollout_log_probs": Ragged(np.zeros(len(tokens.values), dtype=np.float32), tokens.lengths)}
        turns = float(np.mean([len(self._texts[id]) for id in left.ids.tolist()])) if len(left) else 0.0
        return Result(Batch(left.ids, left.ids >> SAMPLE_ID_BITS, columns), {"spoken": (turns, float(len(left)))})


class FakeAdvantage(FakeEstimator):
    """Over the columns that a real one is given."""

    def call(self, call: Call, batch: Batch) -> Result:
        return super().call(
            call, Batch(batch.ids, batch.prompt_ids, {"tokens": batch.columns["loss_mask"]} | dict(batch.columns))
        )


def make_talking(setup: RankSetup) -> object:
    if setup.role.kind in (Kind.GENERATOR, Kind.ESTIMATOR):
        return FakeSpeaker(setup) if setup.role.kind is Kind.GENERATOR else FakeAdvantage(setup)
    return make_rank(setup) if setup.role.kind in (Kind.ENV, Kind.DATA) else make_fake(setup)


def debate(folder: Path, alice: int = 1, bob: int = 1) -> Plan:
    """Two generators of so many ranks, a trainer, each in a pool of its own."""
    (folder / "talk.py").write_text(TALK)
    sizes = {"alice_train": 1, "alice": alice, "bob": bob}
    pools = ", ".join(f"p{i}: {{gpus: {n}, roles: [{role}]}}" for i, (role, n) in enumerate(sizes.items()))
    (folder / "flow.yaml").write_text(f"{DEBATE}placement: {{pools: {{{pools}}}}}\n")
    return compile_spec(load(folder / "flow.yaml"))
