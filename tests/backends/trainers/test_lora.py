"""A trainer of adapters against the model that is written out: W + (alpha / r) B A as one matrix, with autograd's own
gradient of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from flowrl.backends.batch import Batch
from flowrl.backends.lora import adapted_layers
from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.backends.weights import tensor_of
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import OptimizerParams
from flowrl.machine.adapter import adapter_parameters
from flowrl.machine.models import shape_of
from tests.backends.ranks import forward, generate, prompts, rank_of, sample_rows, update
from tests.backends.tiny import SHAPE, make_tiny, tiny_model

LORA = {"rank": 4, "alpha": 12.0, "targets": "all_linear"}
SCALE = 3.0
SGD = OptimizerParams(name="sgd", lr=0.5, max_grad_norm=None)
ADAM = OptimizerParams(name="adamw", lr=1e-2, weight_decay=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("lora") / "m")


@pytest.fixture
def trainer(folder: Path) -> Iterator[Any]:
    rank = trained(folder)
    yield rank
    rank.close()


def trained(folder: Path, steps: int = 0, lora: dict[str, Any] = LORA, **changes: Any) -> Any:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", lora=lora, **({"optimizer": SGD} | changes))
    for step in range(1, steps + 1):
        rank.call(update(step=step), sample_rows(8, seed=step))
    return rank


def parameters(trainer: Any) -> dict[str, Tensor]:
    return dict(trainer._rank.module.named_parameters())


def spread(trainer: Any, seed: int = 5) -> None:
    """Adapters away from their start, where B is zero."""
    torch.manual_seed(seed)
    for _, layer in adapted_layers(trainer._rank.module):
        with torch.no_grad():
            layer.lora_b.normal_(std=0.05)


def written_out(trainer: Any, folder: Path) -> Any:
    """The model without adapters whose matrices are the sums."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    own = parameters(trainer)
    for name, parameter in model.named_parameters():
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_a" in own:
            with torch.no_grad():
                parameter += SCALE * own[f"{layer}.lora_b"] @ own[f"{layer}.lora_a"]
    return model


def sent(trainer: Any, *, adapters: bool = False) -> tuple[Any, Any, dict[str, Tensor]]:
    manifest = trainer.manifest(adapters=adapters)
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    trainer.write_weights(buffer, adapters=adapters)
    return manifest, buffer, {spec.name: tensor_of(spec, buffer) for spec in manifest}


def log_probs_of(rank: Any, call: Any, batch: Any) -> Any:
    column = "old_log_probs" if call.op.role == "actor_train" else "ref_log_probs"
    return rank.call(call, batch).batch.ragged(column).values


def plain_log_probs(model: Any, batch: Any) -> Tensor:
    found = []
    for row, mask in zip(batch.ragged("tokens").rows(), batch.ragged("loss_mask").rows(), strict=True):
        ids = torch.tensor([row.tolist()])
        logs = torch.log_softmax(model(ids).logits[0, :-1], dim=-1).gather(-1, ids[0, 1:, None])[:, 0]
        found += [torch.zeros(1), logs * torch.tensor(mask.tolist())[1:]]
    return torch.cat(found)


def test_it_starts_as_its_base_and_moves_adapters_alone(folder: Path, trainer: Any) -> None:
    batch = sample_rows(8)
    base = rank_of(Kind.TRAINER, folder, "fsdp")
    assert np.array_equal(log_probs_of(trainer, forward(), batch), log_probs_of(base, forward(), batch))
    before = {name: value.detach().clone() for name, value in parameters(trainer).items()}
    for step in (1, 2):
        trainer.call(update(step=step), batch)
    moved = {name for name, value in parameters(trainer).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert len(moved) == 2 * 7 * SHAPE["layers"]


def test_log_probs_are_those_of_the_sum(folder: Path, trainer: Any) -> None:
    spread(trainer)
    batch = sample_rows(8)
    with torch.no_grad():
        expected = plain_log_probs(written_out(trainer, folder), batch)
    base = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch)
    assert (expected - base).abs().max() > 0.1
    assert np.abs(log_probs_of(trainer, forward(), batch) - expected.numpy()).max() < 1e-5


def test_gradients_are_those_of_the_sum(folder: Path, trainer: Any) -> None:
    """dL/dB = s G A^T and dL/dA = s B^T G, with G the gradient of the written out matrix."""
    spread(trainer)
    batch = sample_rows(8)
    model = written_out(trainer, folder)
    before = {name: value.detach().clone() for name, value in parameters(trainer).items()}
    metrics = trainer.call(update(loss="reinforce"), batch).metrics
    after = parameters(trainer)
    weights = torch.from_numpy(batch.ragged("advantages").values) * torch.from_numpy(batch.ragged("loss_mask").values)
    mask = torch.cat([torch.tensor([False, *row.tolist()[1:]]) for row in batch.ragged("loss_mask").rows()])
    logs = plain_log_probs(model, batch)
    ratio = (logs.detach() - torch.from_numpy(batch.ragged("old_log_probs").values)).exp()
    loss = -(ratio * logs * weights).sum() / mask.sum()
    loss.backward()
    assert metrics["loss"][0] == pytest.approx(loss.item(), abs=1e-6)
    squares = 0.0
    for name, parameter in model.named_parameters():
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_a" not in before:
            continue
        a, b = before[f"{layer}.lora_a"], before[f"{layer}.lora_b"]
        expected = {"lora_a": SCALE * b.T @ parameter.grad, "lora_b": SCALE * parameter.grad @ a.T}
        for part, gradient in expected.items():
            got = (before[f"{layer}.{part}"] - after[f"{layer}.{part}"]) / 0.5
            assert torch.allclose(got, gradient, atol=1e-6), f"{layer}.{part}"
            squares += float(gradient.square().sum())
    assert metrics["grad_norm"][0] == pytest.approx(squares**0.5, rel=1e-5)


def test_adapters_have_as_many_parameters_as_the_plan_counts(folder: Path) -> None:
    shape = shape_of("inline", inline=tiny_model().inline)
    for lora in (LORA, {"rank": 3, "alpha": 3, "targets": ("q_proj", "down_proj")}):
        rank = trained(folder, lora=lora)
        assert sum(p.numel() for n, p in parameters(rank).items() if "lora_" in n) == adapter_parameters(shape, lora)


def test_the_start_depends_on_the_layer_and_the_seed_alone(folder: Path) -> None:
    few = parameters(trained(folder, lora={**LORA, "targets": ("o_proj",)}))
    many, other = parameters(trained(folder)), parameters(trained(folder, seed=1))
    names = [name for name in few if "lora_a" in name]
    assert len(names) == SHAPE["layers"]
    for name in names:
        assert torch.equal(few[name], many[name])
        assert not torch.equal(few[name], other[name])


def test_merged_weights_are_sent_unless_adapters_are_asked_for(folder: Path, trainer: Any) -> None:
    spread(trainer)
    expected = dict(written_out(trainer, folder).named_parameters())
    _, _, merged = sent(trainer)
    assert list(merged) == list(expected)
    assert all(torch.allclose(merged[name], value, atol=1e-6) for name, value in expected.items())
    _, _, alone = sent(trainer, adapters=True)
    own = parameters(trainer)
    assert set(alone) == {name for name in own if "lora_" in name}
    assert all(torch.equal(alone[name], own[name]) for name in alone)


def test_a_generator_of_the_model_takes_adapters_and_one_of_its_base_merged_weights(folder: Path, trainer: Any) -> None:
    spread(trainer)
    kept = rank_of(Kind.GENERATOR, folder, "hf", lora=LORA)
    whole = rank_of(Kind.GENERATOR, folder, "hf")
    call, asked = generate(samples=2), prompts(["1+1=", "what", "3*4="])
    first = [generator.call(call, asked).batch for generator in (kept, whole)]
    assert np.array_equal(first[0].ragged("tokens").values, first[1].ragged("tokens").values)
    kept.read_weights(*sent(trainer, adapters=True)[:2], 1)
    whole.read_weights(*sent(trainer)[:2], 1)
    then = [generator.call(call, asked).batch for generator in (kept, whole)]
    assert np.array_equal(then[0].ragged("tokens").values, then[1].ragged("tokens").values)
    logs = [batch.ragged("rollout_log_probs").values for batch in then]
    assert np.abs(logs[0] - logs[1]).max() < 1e-5
    assert np.abs(logs[0] - first[0].ragged("rollout_log_probs").values[: len(logs[0])]).max() > 0.01
    kept_columns = {name: then[0].columns[name] for name in ("tokens", "loss_mask")}
    batch = Batch(then[0].ids, then[0].prompt_ids, kept_columns)
    assert np.abs(log_probs_of(trainer, forward(), batch) - logs[0]).max() < 1e-5


def test_a_scorer_of_the_model_is_its_base(folder: Path, trainer: Any) -> None:
    spread(trainer)
    batch = sample_rows(6)
    scorer = rank_of(Kind.SCORER, folder, "fsdp", lora=LORA)
    base = rank_of(Kind.TRAINER, folder, "fsdp")
    scores = scorer.call(forward(), batch).batch.ragged("ref_log_probs").values
    assert np.array_equal(scores, log_probs_of(base, forward(), batch))


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adamw", "sgd"])
def test_going_on_is_bit_equal(folder: Path, tmp_path: Path, optimizer: OptimizerParams) -> None:
    rank = trained(folder, 2, optimizer=optimizer)
    rank.save(tmp_path)
    again = trained(folder, 1, optimizer=optimizer)
    again.restore(tmp_path)
    for step in (3, 4):
        one, two = (r.call(update(step=step), sample_rows(8, seed=step)).metrics for r in (rank, again))
        assert one == two
    left, right = parameters(rank), parameters(again)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_checkpoint_holds_adapters_alone(folder: Path, tmp_path: Path) -> None:
    trained(folder, 1).save(tmp_path)
    whole = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    shape = shape_of("inline", inline=tiny_model().inline)
    size = (tmp_path / "rank-0.safetensors").stat().st_size
    assert 4 * adapter_parameters(shape, LORA) < size < whole


@pytest.mark.parametrize("file_bytes", [2**32, 20_000])
def test_an_exported_folder_is_merged_and_generates_the_same_tokens(
    folder: Path, tmp_path: Path, file_bytes: int
) -> None:
    rank = trained(folder, 3)
    (tmp_path / "checkpoint").mkdir()
    rank.save(tmp_path / "checkpoint")
    out = export_checkpoint(tmp_path / "checkpoint", folder, tmp_path / "out", file_bytes=file_bytes)
    model = AutoModelForCausalLM.from_pretrained(out)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, rank._rank.module(ids).logits, atol=1e-5)
    assert AutoTokenizer.from_pretrained(out).eos_token == "<eos>"
    kept = rank_of(Kind.GENERATOR, folder, "hf", lora=LORA)
    kept.read_weights(*sent(rank, adapters=True)[:2], 1)
    call, asked = generate(temperature=0.0, max_response_tokens=12), prompts(["1+1=", "what", "3*4="])
    there, here = (r.call(call, asked).batch.ragged("tokens") for r in (kept, rank_of(Kind.GENERATOR, out, "hf")))
    assert np.array_equal(there.values, here.values)
    assert np.array_equal(there.lengths, here.lengths)


def test_adapters_of_another_base_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    trained(folder, 1).save(tmp_path / "checkpoint")
    for place in ("narrow", "empty"):
        other = tmp_path / place
        other.mkdir()
        if place == "narrow":
            other = make_tiny(tmp_path / "one layer", layers=1)
        with pytest.raises(FlowError) as caught:
            export_checkpoint(tmp_path / "checkpoint", other, tmp_path / f"out {place}")
        assert caught.value.diagnostics[0].code == "FR0831"
        assert "adapters stand beside" in str(caught.value)


def test_a_critic_trains_its_head_beside_its_adapters(folder: Path, tmp_path: Path) -> None:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", head="scalar", optimizer=ADAM, lora=LORA)
    for step in (1, 2, 3):
        rank.call(update(step=step, loss="value"), sample_rows(8))
    (tmp_path / "checkpoint").mkdir()
    rank.save(tmp_path / "checkpoint")
    out = export_checkpoint(tmp_path / "checkpoint", folder, tmp_path / "out")
    model = AutoModelForTokenClassification.from_pretrained(out)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        values = rank._rank.module(ids).logits
        assert values.abs().max() > 1e-3
        assert torch.allclose(model(ids).logits, values, atol=1e-5)


def test_bfloat16_keeps_the_base_low_and_the_adapters_high(folder: Path, tmp_path: Path) -> None:
    rank, plain = trained(folder, 1, dtype="bfloat16"), trained(folder)
    kinds = {name.rsplit(".", 1)[1]: value.dtype for name, value in parameters(rank).items()}
    assert kinds["lora_a"] is kinds["lora_b"] is torch.float32
    assert kinds["weight"] is torch.bfloat16
    for each in (rank, plain):
        with torch.no_grad():
            for (name, own), other in zip(parameters(each).items(), parameters(plain).values(), strict=True):
                if "lora_" in name:
                    getattr(own, "_local_tensor", own).copy_(torch.full_like(other, 0.01))
    low, high = (log_probs_of(r, forward(), sample_rows(6)) for r in (rank, plain))
    assert 0 < np.abs(low - high).max() < 0.1
    assert {spec.dtype for spec in rank.manifest()} == {"bfloat16"}
    rank.close()
