"""The presets dapo and safe_rlhf on the real backends, tiny: several steps with rewards and losses that change, and a
multiplier that follows the cost and goes on after a restart."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.runtime.runs import Killed, at, lines_of, logs_of
from tests.runtime.tiny_flow import EXAMPLES, QUIET

SHAPE = (
    "{architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, ffn_size: 32,"
    " max_positions: 64, tie_embeddings: true}"
)
DATA = (
    f'train: {{source: "{EXAMPLES}/arithmetic.py:problems", args: {{seed: 1, size: 64}}, prompt: question,'
    " keep: [entry], max_prompt_tokens: 8}"
)
DAPO = f"""flowrl: 1
name: dapo
use: dapo
vars: {{max_response_tokens: 6, overlong_buffer_tokens: 3}}
models: {{policy: {{source: {SHAPE}, dtype: float32}}}}
data: {{{DATA}}}
roles:
  actor_train: {{optimizer: {{lr: 1.0e-2}}}}
  actor_infer: {{backend: hf}}
  reward: {{function: "{EXAMPLES}/arithmetic.py:partial_credit"}}
step: {{prompts: 4, samples_per_prompt: 3, updates: 2}}
run: {{steps: 4}}
"""
SAFE = f"""flowrl: 1
name: safe
use: safe_rlhf
models:
  policy: {{source: {SHAPE}, dtype: float32}}
  value: {{source: {SHAPE}, head: scalar, dtype: float32}}
  cost_value: {{source: {SHAPE}, head: scalar, dtype: float32}}
  reward_model: {{source: {SHAPE}, head: scalar, dtype: float32}}
  cost_model: {{source: {SHAPE}, head: scalar, dtype: float32}}
data: {{{DATA}}}
roles:
  actor_train: {{optimizer: {{lr: 1.0e-2}}}}
  critic: {{optimizer: {{lr: 1.0e-2}}}}
  cost_critic: {{optimizer: {{lr: 1.0e-2}}}}
  actor_infer: {{backend: hf, generate: {{max_response_tokens: 6}}}}
  lagrange: {{args: {{cost_limit: -0.5}}}}
step: {{prompts: 8, samples_per_prompt: 1, updates: 2}}
run: {{steps: 4, checkpoint_every_steps: 1}}
"""


def _plan(text: str, folder: Path) -> Plan:
    (folder / "flow.yaml").write_text(text)
    return compile_spec(load(folder / "flow.yaml"))


def _metrics(folder: Path, name: str) -> list[float]:
    return [line[name] for line in lines_of(folder / "metrics.jsonl")]


def test_dapo(tmp_path: Path) -> None:
    """With its own oversampling of 1.5 and up to ten rounds."""
    folder = run(_plan(DAPO, tmp_path), RunOptions(runs=tmp_path, launcher="inline", session=QUIET)).folder
    assert len(set(_metrics(folder, "actor_train.loss"))) == 4
    assert len(set(_metrics(folder, "reward.rewards"))) == 4
    assert max(_metrics(folder, "refill_rounds")) > 1
    assert [line["samples"] for line in lines_of(folder / "ledger.jsonl")] == [12] * 4


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return _plan(SAFE, tmp_path_factory.mktemp("safe"))


@pytest.fixture(scope="module")
def whole(safe: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of it that nothing befalls."""
    runs = tmp_path_factory.mktemp("whole")
    return run(safe, RunOptions(runs=runs, launcher="inline", session=QUIET)).folder


def test_safe_rlhf(whole: Path) -> None:
    """The multiplier of each step is that of the step before, times what the mean cost asks for."""
    for name in ("actor_train.loss", "critic.loss", "cost_critic.loss", "reward.rewards", "cost.rewards"):
        assert len(set(_metrics(whole, name))) == 4, name
    multiplier = 1.0
    for cost, found in zip(_metrics(whole, "cost.rewards"), _metrics(whole, "lagrange.multiplier"), strict=True):
        multiplier = min(multiplier * exp(0.1 * multiplier * (cost + 0.5)), 5.0)
        assert found == pytest.approx(multiplier, rel=1e-6)


@pytest.mark.parametrize("instruction", ["run lagrange.call", "run actor_train.update 2/2"])
def test_safe_rlhf_goes_on_where_it_was(safe: Plan, whole: Path, tmp_path: Path, instruction: str) -> None:
    """Killed in step 3, the multiplier changed or not, and taken up again: bit-equal logs."""
    dies = at(instruction, 3)

    class Dying(InlineLauncher):
        def submit(self, work: Work) -> None:
            if dies(work):
                raise Killed
            super().submit(work)

    folders: list[Path] = []
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: Dying(threads))
    with pytest.raises(Killed):
        run(safe, RunOptions(runs=tmp_path, launcher="inline", session=session, on_folder=folders.append))
    resume(folders[0], session=QUIET)
    assert logs_of(folders[0]) == logs_of(whole)
