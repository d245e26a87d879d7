"""A flow whose policy has adapters, with a reference that is its base: what travels, is shared, and is exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from flowrl import api
from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import make_rank
from flowrl.plan.plan import Plan
from flowrl.runtime.export import export
from flowrl.runtime.result import RunResult
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.backends.tiny import make_tiny
from tests.runtime.runs import Killed, KilledAt, at, logs_of
from tests.runtime.tiny_flow import QUIET

TASK = """
def rows():
    return [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]


def score(response, answer):
    return [float(sum(c == d for c, d in zip(r, a))) - 0.01 * len(r) for r, a in zip(response, answer)]
"""
FLOW = """flowrl: 1
name: lora
models:
  policy:
    source: base
    dtype: float32
    lora: {rank: 2, alpha: 8}
  whole: {source: base, dtype: float32}
data:
  train: {source: "task.py:rows", prompt: question, keep: [answer], max_prompt_tokens: 8}
roles:
  actor_train:
    model: policy
    backend: fsdp
    optimizer: {lr: 0.02}
    update: {loss: ppo, kl: {coef: 0.1, form: k3}, old_log_probs: recompute}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 8}}
  reference: {model: policy, backend: fsdp}
  reward: {function: "task.py:score"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, actor_train.log_probs
  - reward.score -> advantage.estimate
  - advantage.estimate, reference.log_probs, actor_train.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 4, samples_per_prompt: 4}
run: {steps: 4, checkpoint_every_steps: 2}
"""
MERGED = ("actor_infer: {model: policy", "actor_infer: {model: whole")


class Seen:
    """Ranks as they were made, each setup beside its rank."""

    def __init__(self, *, lends: bool = True) -> None:
        self._lends = lends
        self.made: dict[str, tuple[RankSetup, Any]] = {}
        self.sent: list[list[str]] = []

    def __call__(self, setup: RankSetup) -> Any:
        setup = setup if self._lends else replace(setup, beside=None)
        rank = make_rank(setup)
        self.made[setup.role.name] = (setup, rank)
        if hasattr(rank, "read_weights"):
            read = rank.read_weights

            def noted(manifest: Any, buffer: Any, version: int) -> None:
                self.sent.append([spec.name for spec in manifest])
                read(manifest, buffer, version)

            if setup.role.name == "actor_infer":
                rank.read_weights = noted
        return rank


def plan_of(folder: Path, *edits: tuple[str, str]) -> Plan:
    text = FLOW
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    make_tiny(folder / "base", layers=1, ffn_size=32)
    (folder / "task.py").write_text(TASK)
    (folder / "flow.yaml").write_text(text)
    return api.plan(folder / "flow.yaml")


def started(plan: Plan, runs: Path, *, lends: bool = True) -> tuple[RunResult, Seen]:
    seen = Seen(lends=lends)
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: KilledAt(_never, seen))
    return run(plan, RunOptions(runs=runs, session=session)), seen


def _never(work: object) -> bool:
    return False


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_of(tmp_path_factory.mktemp("flow"))


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Seen]:
    return started(plan, tmp_path_factory.mktemp("runs"))


def test_adapters_travel_alone_as_the_plan_says(plan: Plan, whole: tuple[RunResult, Seen]) -> None:
    (decision,) = [each for each in plan.stages[0].decisions if each.what == "weights of actor_train => actor_infer"]
    assert decision.chosen == "adapter"
    assert len(whole[1].sent) == 4
    assert all(".lora_" in name for names in whole[1].sent for name in names)


def test_the_reference_is_the_trainers_own_copy(whole: tuple[RunResult, Seen]) -> None:
    setup, reference = whole[1].made["reference"]
    trainer = whole[1].made["actor_train"][1]
    assert setup.beside is trainer
    assert reference._rank is trainer.lent()


def test_a_copy_of_its_own_says_the_same(plan: Plan, whole: tuple[RunResult, Seen], tmp_path: Path) -> None:
    other, seen = started(plan, tmp_path, lends=False)
    assert seen.made["reference"][1]._rank is not seen.made["actor_train"][1].lent()
    assert logs_of(other.folder) == logs_of(whole[0].folder)


def test_a_generator_of_the_base_is_sent_merged_weights(whole: tuple[RunResult, Seen], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, MERGED)
    assert not [each for each in plan.stages[0].decisions if each.what.startswith("weights of")]
    _, seen = started(plan, tmp_path / "runs")
    names = [name for name, _ in AutoModelForCausalLM.from_pretrained(tmp_path / "base").named_parameters()]
    assert seen.sent == [names] * 4


def test_a_resumed_run_is_bit_equal(plan: Plan, whole: tuple[RunResult, Seen], tmp_path: Path) -> None:
    folders: list[Path] = []
    dies = at("run actor_train.update", 4)
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: KilledAt(dies, make_rank))
    with pytest.raises(Killed):
        run(plan, RunOptions(runs=tmp_path, session=session, on_folder=folders.append))
    resume(folders[0], session=QUIET)
    assert logs_of(folders[0]) == logs_of(whole[0].folder)


def test_an_export_is_merged(plan: Plan, whole: tuple[RunResult, Seen], tmp_path: Path) -> None:
    out = export(whole[0].folder, None, tmp_path / "out")
    initial = load_file(Path(plan.folder) / "base/model.safetensors")
    exported = load_file(out / "model.safetensors")
    assert exported.keys() == initial.keys()
    moved = {name for name in exported if not torch.equal(exported[name], initial[name])}
    assert moved == {name for name in exported if "_proj.weight" in name}
    checkpoint = next((whole[0].folder / "checkpoints").glob("*/step-000004/actor_train"))
    assert all(".lora_" in key for key in load_file(checkpoint / "rank-0.safetensors"))
