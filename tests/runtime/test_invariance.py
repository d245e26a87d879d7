"""Promise 2: placement never changes the maths. With the same layouts one flow gives bit-equal tokens, losses and
weights under every placement, in one process and on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.invariant_flows import FLOWS, ROLES, STEPS, named, partitions, placed
from tests.runtime.runs import lines_of

PLACEMENTS = [(flow, parts) for flow in FLOWS for parts in partitions(ROLES[flow])]
TOGETHER = {flow: (ROLES[flow],) for flow in FLOWS}
APART = {flow: (("actor_infer",), tuple(r for r in ROLES[flow] if r != "actor_infer")) for flow in FLOWS}

Outcome = dict[str, object]


def _outcome(flow: str, parts: tuple[tuple[str, ...], ...], launcher: str, folder: Path) -> Outcome:
    """Everything that the maths made: the text of a sample of every prompt, metrics, ledger, and final weights."""
    session = SessionOptions(progress=False, threads=1)
    plan = placed(flow, parts, folder)
    ran = run(plan, RunOptions(runs=folder, launcher=launcher, session=session)).folder
    timed = ("seconds", "tokens_per_second", "samples_per_second")
    return {
        "metrics": [{k: v for k, v in line.items() if k not in timed} for line in lines_of(ran / "metrics.jsonl")],
        "samples": lines_of(ran / "samples.jsonl"),
        "ledger": lines_of(ran / "ledger.jsonl"),
        "weights": {
            path.parent.name: load_file(path) for path in ran.glob(f"checkpoints/*/step-{STEPS:06}/*/*.safetensors")
        },
    }


def _assert_equal(one: Outcome, other: Outcome) -> None:
    for what in ("samples", "ledger", "metrics"):
        assert one[what] == other[what], what
    weights, others = one["weights"], other["weights"]
    assert isinstance(weights, dict)
    assert isinstance(others, dict)
    assert weights.keys() == others.keys()
    assert weights
    for role, tensors in weights.items():
        assert all(torch.equal(tensor, others[role][name]) for name, tensor in tensors.items())


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Each flow with everything together, in one process."""
    return {flow: _outcome(flow, TOGETHER[flow], "inline", tmp_path_factory.mktemp(flow)) for flow in FLOWS}


@pytest.mark.parametrize("flow", FLOWS)
def test_the_reference_is_worth_comparing_with(references: dict[str, Outcome], flow: str) -> None:
    """Real sampling, and weights that move: else equality would say nothing."""
    samples, metrics = references[flow]["samples"], references[flow]["metrics"]
    assert isinstance(samples, list)
    assert isinstance(metrics, list)
    assert len(samples) == STEPS * 4  # one of each prompt's samples; all of them are in the losses and the weights
    assert len({line["response"] for line in samples}) > STEPS
    assert len({line["actor_train.loss"] for line in metrics}) == STEPS
    assert all(line["actor_train.grad_norm"] > 0 for line in metrics)


def test_the_filter_drops_groups(references: dict[str, Outcome]) -> None:
    metrics = references["dapo"]["metrics"]
    assert isinstance(metrics, list)
    assert min(line["informative.kept"] for line in metrics) < 1.0


def test_refill_draws_several_rounds(references: dict[str, Outcome]) -> None:
    metrics, ledger = references["dapo_refilled"]["metrics"], references["dapo_refilled"]["ledger"]
    assert isinstance(metrics, list)
    assert isinstance(ledger, list)
    assert max(line["refill_rounds"] for line in metrics) > 1
    assert [sum(stop - start for start, stop in line["prompts"]) for line in ledger] == [4] * STEPS


@pytest.mark.parametrize(("flow", "parts"), PLACEMENTS, ids=[f"{f}: {named(p)}" for f, p in PLACEMENTS])
def test_inline_placements_are_bit_equal(
    references: dict[str, Outcome], flow: str, parts: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    _assert_equal(_outcome(flow, parts, "inline", tmp_path), references[flow])


@pytest.fixture
def ray_package() -> None:
    pytest.importorskip("ray")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_package")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("where", [TOGETHER, APART], ids=["together", "apart"])
@pytest.mark.parametrize("flow", FLOWS)
def test_ray_placements_are_bit_equal(
    references: dict[str, Outcome], flow: str, where: dict[str, tuple[tuple[str, ...], ...]], tmp_path: Path
) -> None:
    _assert_equal(_outcome(flow, where[flow], "ray", tmp_path), references[flow])
