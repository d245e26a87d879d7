"""Promise 2: placement never changes the maths. With the same layouts one flow gives bit-equal tokens, losses and
weights colocated and split, in one process and on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import EXAMPLES

STEPS = 5
SMALL = (
    *(f"models.{model}.source.{key}" for model in ("policy", "value") for key in ("hidden_size=32", "layers=1")),
    *(f"models.{model}.source.{key}" for model in ("policy", "value") for key in ("heads=2", "kv_heads=2")),
    "step.prompts=4",
    "step.samples_per_prompt=3",
    f"run.steps={STEPS}",
    f"run.checkpoint_every_steps={STEPS}",
    "run.samples_logged=4",
    "roles.actor_train.optimizer.lr=1e-2",
    "cluster=3xcpu",
)
PLACEMENTS = {
    "colocated": "{all: {gpus: 1, roles: [actor_train, actor_infer, critic, reference]}}",
    "split": "{rollout: {gpus: 1, roles: [actor_infer]}, train: {gpus: 1, roles: [actor_train, critic, reference]}}",
    "disaggregated": "{rollout: {gpus: 1, roles: [actor_infer, reference]}, train: {gpus: 1, roles: [actor_train]},"
    " values: {gpus: 1, roles: [critic]}}",
}


def _plan(placement: str) -> Plan:
    return compile_spec(load(EXAMPLES / "ppo.yaml", (*SMALL, f"placement.pools={PLACEMENTS[placement]}")))


def _outcome(placement: str, launcher: str, runs: Path) -> dict[str, object]:
    """Everything that the maths made: the text of a sample of every prompt, losses and norms, and final weights."""
    session = SessionOptions(progress=False, threads=1)
    folder = run(_plan(placement), RunOptions(runs=runs, launcher=launcher, session=session)).folder
    kept = ("actor_train.loss", "actor_train.grad_norm", "critic.loss", "critic.grad_norm", "reward.rewards")
    metrics = [{key: line[key] for key in kept} for line in lines_of(folder / "metrics.jsonl")]
    samples = [
        (line["step"], line["prompt"], line["response"], line["reward"]) for line in lines_of(folder / "samples.jsonl")
    ]
    saved = {path.parent.name: load_file(path) for path in folder.glob("checkpoints/*/step-000005/*/*.safetensors")}
    return {"metrics": metrics, "samples": samples, "weights": saved}


def _assert_equal(one: dict[str, object], other: dict[str, object]) -> None:
    assert one["samples"] == other["samples"]
    assert one["metrics"] == other["metrics"]
    weights, others = one["weights"], other["weights"]
    assert isinstance(weights, dict)
    assert isinstance(others, dict)
    assert weights.keys() == others.keys() == {"actor_train", "critic"}
    for role, tensors in weights.items():
        assert all(torch.equal(tensor, others[role][name]) for name, tensor in tensors.items())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return _outcome("colocated", "inline", tmp_path_factory.mktemp("reference"))


def test_the_reference_is_worth_comparing_with(reference: dict[str, object]) -> None:
    """Real sampling, all samples seen, and weights that move: else equality would say nothing."""
    samples, metrics = reference["samples"], reference["metrics"]
    assert isinstance(samples, list)
    assert isinstance(metrics, list)
    assert len(samples) == STEPS * 4  # one of each prompt's three; all of them are in the losses and the weights
    assert len({text for _, _, text, _ in samples}) > STEPS
    assert len({line["actor_train.loss"] for line in metrics}) == STEPS
    assert all(line["actor_train.grad_norm"] > 0 for line in metrics)


@pytest.mark.parametrize("placement", ["colocated", "split", "disaggregated"])
def test_inline_placements_are_bit_equal(reference: dict[str, object], placement: str, tmp_path: Path) -> None:
    _assert_equal(_outcome(placement, "inline", tmp_path), reference)


@pytest.fixture
def ray_package() -> None:
    pytest.importorskip("ray")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_package")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("placement", ["colocated", "split"])
def test_ray_placements_are_bit_equal(reference: dict[str, object], placement: str, tmp_path: Path) -> None:
    _assert_equal(_outcome(placement, "ray", tmp_path), reference)
