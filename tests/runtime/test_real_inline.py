"""The quickstart at a tiny size with the real trainer, generator and reward: resume bit-equal, export equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from flowrl.backends.registry import make_rank
from flowrl.plan.plan import Plan
from flowrl.runtime.export import export
from flowrl.runtime.result import RunResult
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.runs import Killed, KilledAt, at, lines_of, logs_of
from tests.runtime.tiny_flow import QUIET, tiny_quickstart


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tiny_quickstart()


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(plan, RunOptions(runs=tmp_path_factory.mktemp("whole"), session=QUIET))


def _killed(plan: Plan, runs: Path, stage: int, instruction: str, step: int) -> Path:
    """Run until this instruction of this stage would begin."""
    folders: list[Path] = []
    made: list[object] = []

    def launcher(kind: str, threads: int) -> KilledAt:
        made.append(kind)
        dies: Callable[..., bool] = at(instruction, step) if len(made) == stage + 1 else lambda work: False
        return KilledAt(dies, make_rank)

    session = SessionOptions(progress=False, threads=1, make_launcher=launcher)
    with pytest.raises(Killed):
        run(plan, RunOptions(runs=runs, session=session, on_folder=folders.append))
    return folders[0]


@pytest.mark.parametrize(
    ("stage", "instruction", "step"),
    [(0, "run actor_train.update", 3), (1, "run actor_infer.generate", 1), (1, "run actor_train.update", 4)],
)
def test_a_resumed_run_is_bit_equal(
    plan: Plan, whole: RunResult, tmp_path: Path, stage: int, instruction: str, step: int
) -> None:
    """Tokens, rewards and losses, from within the first stage, from the border and from within the second."""
    folder = _killed(plan, tmp_path, stage, instruction, step)
    resume(folder, session=QUIET)
    assert logs_of(folder) == logs_of(whole.folder)
    weights = [
        load_file(f / "checkpoints/grpo/step-000004/actor_train/rank-0.safetensors") for f in (folder, whole.folder)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_the_second_stage_starts_from_the_first_ones_weights(whole: RunResult) -> None:
    trained = load_file(whole.folder / "models/trained/warmup/actor_train/model.safetensors")
    initial = load_file(whole.folder / "models/initial/warmup/policy/model.safetensors")
    saved = load_file(whole.folder / "checkpoints/warmup/step-000003/actor_train/rank-0.safetensors")
    assert all(torch.equal(trained[name], saved[f"model/{name}"]) for name in trained)
    assert any(not torch.equal(trained[name], initial[name]) for name in trained)


def test_the_samples_are_of_the_task(whole: RunResult) -> None:
    samples = [line for line in lines_of(whole.folder / "samples.jsonl") if line["stage"] == "grpo"]
    assert {line["step"] for line in samples} == {1, 2, 3, 4, 5}
    assert all(line["prompt"].endswith("=") and isinstance(line["response"], str) for line in samples)
    assert all(line["version"] == line["step"] - 1 for line in samples)


def test_the_plan_in_the_folder_is_the_one_that_was_run(plan: Plan, whole: RunResult) -> None:
    from flowrl.plan.io import loads

    assert loads((whole.folder / "plan.json").read_bytes(), "plan.json") == plan


def test_an_exported_checkpoint_loads_with_equal_logits(whole: RunResult, tmp_path: Path) -> None:
    out = export(whole.folder, None, tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(out)
    saved = load_file(whole.folder / "checkpoints/grpo/step-000004/actor_train/rank-0.safetensors")
    assert isinstance(exported, Qwen2ForCausalLM)
    reference = Qwen2ForCausalLM(exported.config).eval()
    state = {key.removeprefix("model/"): value for key, value in saved.items() if key.startswith("model/")}
    reference.load_state_dict(state, strict=False)
    reference.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = torch.tensor([tokenizer("12+34=")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(exported.eval()(ids).logits, reference(ids).logits)


def test_export_takes_the_step_and_the_role_that_are_asked_for(
    whole: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.folder.parent)
    out = export(Path(whole.folder.name), 2, tmp_path / "two", role="actor_train")
    saved = load_file(whole.folder / "checkpoints/grpo/step-000002/actor_train/rank-0.safetensors")
    name = "model.embed_tokens.weight"
    assert torch.equal(load_file(out / "model.safetensors")[name], saved[f"model/{name}"])
    assert json.loads((out / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
