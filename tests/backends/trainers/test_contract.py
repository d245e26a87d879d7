"""What every trainer must do on one rank. A backend joins by its name in BACKENDS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.text import Codec
from flowrl.backends.trainers.fsdp.checkpoint import Stored
from flowrl.backends.weights import tensor_of
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import CorrectionParams, EngineParams, KlParams, OptimizerParams
from tests.backends.placed import at_its_place
from tests.backends.ranks import forward, rank_of, sample_rows, update
from tests.backends.tiny import make_scored, make_tiny
from tests.backends.trainers.with_megatron import needs_megatron
from tests.conftest import Told

BACKENDS = ("fsdp", pytest.param("megatron", marks=needs_megatron))
SGD = OptimizerParams(name="sgd", lr=0.1, max_grad_norm=None)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("trainers") / "m")


@pytest.fixture(scope="module")
def scalar_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a head of its own, not zero."""
    return make_scored(folder, tmp_path_factory.mktemp("trainers") / "scalar")


@pytest.fixture
def trainer(backend: str, folder: Path) -> Iterator[Any]:
    rank = rank_of(Kind.TRAINER, folder, backend, optimizer=SGD)
    yield rank
    rank.close()


def plain_log_probs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """Each row alone through the model, without padding: log-probs and entropy from place 1 on."""
    log_probs, entropies = [], []
    for row in batch.ragged("tokens").rows():
        ids = torch.tensor([row.tolist()])
        logs = torch.log_softmax(model(ids).logits[0, :-1].float() / temperature, dim=-1)
        log_probs.append(logs.gather(-1, ids[0, 1:, None])[:, 0])
        entropies.append(-(logs.exp() * logs).sum(-1))
    return log_probs, entropies


def masks(batch: Batch) -> list[Tensor]:
    return [torch.tensor(row.tolist())[1:] for row in batch.ragged("loss_mask").rows()]


def parameters_of(trainer: Any) -> dict[str, Tensor]:
    manifest = trainer.manifest()
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    trainer.write_weights(buffer)
    return {spec.name: tensor_of(spec, buffer) for spec in manifest}


@pytest.mark.parametrize("budget", [1, 30, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward(trainer: Any, folder: Path, budget: int, temperature: float) -> None:
    batch = sample_rows(9)
    result = trainer.call(forward(micro_batch_tokens=budget, temperature=temperature), batch)
    assert np.array_equal(result.batch.ids, batch.ids)
    with torch.no_grad():
        log_probs, entropies = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch, temperature)
    for name, expected in (("old_log_probs", log_probs), ("entropy", entropies)):
        column = result.batch.ragged(name)
        assert column.values.dtype == np.float32
        assert np.array_equal(column.lengths, batch.ragged("tokens").lengths)
        for row, plain, mask in zip(column.rows(), expected, masks(batch), strict=True):
            assert row[0] == 0
            assert np.abs(row[1:] - (plain * mask).numpy()).max() < 1e-5


def test_values_are_those_of_the_state_before_each_token(backend: str, scalar_folder: Path) -> None:
    rank = rank_of(Kind.TRAINER, scalar_folder, backend, head="scalar")
    batch = sample_rows(7)
    values = rank.call(forward("values", micro_batch_tokens=30), batch).batch.ragged("values")
    model = AutoModelForTokenClassification.from_pretrained(scalar_folder).eval()
    for row, tokens in zip(values.rows(), batch.ragged("tokens").rows(), strict=True):
        with torch.no_grad():
            plain = model(torch.tensor([tokens.tolist()])).logits[0, :, 0]
        assert row[0] == 0
        assert np.abs(row[1:] - plain[:-1].numpy()).max() < 1e-5
    rank.close()


def test_a_head_that_the_folder_lacks_starts_at_zero(backend: str, folder: Path) -> None:
    rank = rank_of(Kind.TRAINER, folder, backend, head="scalar")
    assert not rank.call(forward("values"), sample_rows(3)).batch.ragged("values").values.any()
    rank.close()


def hand_loss(model: Any, batch: Batch, aggregate: str) -> Tensor:
    """PPO with KL and entropy, row by row."""
    log_probs, entropies = plain_log_probs(model, batch)
    sums, counts = [], []
    for row, mask in enumerate(masks(batch)):
        column = {
            n: torch.tensor(batch.ragged(n).rows()[row][1:].tolist())
            for n in ("advantages", "old_log_probs", "ref_log_probs")
        }
        ratio = (log_probs[row] - column["old_log_probs"]).exp()
        gain = torch.minimum(ratio * column["advantages"], ratio.clamp(0.8, 1.3) * column["advantages"])
        d = column["ref_log_probs"] - log_probs[row]
        loss = -gain - 0.01 * entropies[row] + 0.1 * (d.exp() - 1 - d)
        sums.append((loss * mask).sum())
        counts.append(mask.sum())
    if aggregate == "token_mean":
        return torch.stack(sums).sum() / torch.stack(counts).sum()
    if aggregate == "sequence_mean":
        return (torch.stack(sums) / torch.stack(counts)).mean()
    return torch.stack(sums).sum() / (len(sums) * 10)


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "sequence_sum_fixed"])
@pytest.mark.parametrize("budget", [25, 10_000])
def test_an_update_is_a_hand_written_step(trainer: Any, folder: Path, aggregate: str, budget: int) -> None:
    batch = sample_rows(9)
    call = update(
        clip_high=0.3,
        entropy_coef=0.01,
        kl=KlParams(coef=0.1, form="k3"),
        old_log_probs="recompute",
        aggregate=aggregate,
        micro_batch_tokens=budget,
    )
    metrics = trainer.call(call, batch).metrics
    model = AutoModelForCausalLM.from_pretrained(folder)
    loss = hand_loss(model, batch, aggregate)
    loss.backward()
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    assert metrics["loss"][0] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"][0] == pytest.approx(norm.item(), rel=1e-5)
    moved = parameters_of(trainer)
    for name, parameter in model.named_parameters():
        assert torch.allclose(moved[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-6), name


def test_a_padding_token_that_was_sampled(trainer: Any, folder: Path) -> None:
    """transformers' embeddings give no gradient for what they read for it."""
    batch = sample_rows(9)
    tokens = batch.ragged("tokens")
    values = tokens.values.copy()
    values[::4] = 0
    batch = Batch(batch.ids, batch.prompt_ids, {**batch.columns, "tokens": Ragged(values, tokens.lengths)})
    call = update(clip_high=0.3, entropy_coef=0.01, kl=KlParams(coef=0.1, form="k3"), old_log_probs="recompute")
    metrics = trainer.call(call, batch).metrics
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.pad_token_id == 0
    hand_loss(model, batch, "token_mean").backward()
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    assert metrics["grad_norm"][0] == pytest.approx(norm.item(), rel=1e-5)


def test_sft_reads_text(trainer: Any, folder: Path) -> None:
    pairs = [("1+1=", "2"), ("what", "is it"), ("zz", "")]
    ids = np.arange(3, dtype=np.int64)
    texts = Batch(ids, ids, {"prompt": tuple(p for p, _ in pairs), "response": tuple(r for _, r in pairs)})
    metrics = trainer.call(update(loss="sft"), texts).metrics
    codec, model = Codec(folder), AutoModelForCausalLM.from_pretrained(folder)
    losses = []
    for prompt, response in pairs:
        head, tail = (codec.encode_texts([text])[0].tolist() for text in (prompt, response))
        row = torch.tensor([head + tail + [codec.eos_id]])
        logs = torch.log_softmax(model(row).logits[0], dim=-1)
        losses += [-logs[t - 1, row[0, t]] for t in range(len(head), row.shape[1])]
    assert metrics["loss"][0] == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    with pytest.raises(FlowError) as caught:
        trainer.call(update(loss="sft"), Batch(ids[:1], ids[:1], {"prompt": ("a",), "response": (None,)}))
    assert caught.value.diagnostics[0].code == "FR0817"


def test_a_value_loss_moves_the_values(backend: str, scalar_folder: Path) -> None:
    rank = rank_of(Kind.TRAINER, scalar_folder, backend, head="scalar", optimizer=SGD)
    batch = sample_rows(7)
    metrics = rank.call(update(loss="value", clip_value=None), batch).metrics
    model = AutoModelForTokenClassification.from_pretrained(scalar_folder).eval()
    losses = []
    for row, mask in enumerate(masks(batch)):
        tokens, returns = (torch.tensor([batch.ragged(n).rows()[row].tolist()]) for n in ("tokens", "returns"))
        values = model(tokens).logits[0, :-1, 0]
        losses += list(((values - returns[0, 1:]).square() / 2)[mask])
    assert metrics["loss"][0] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    rank.close()


def test_clipping_by_global_norm(backend: str, folder: Path, trainer: Any) -> None:
    batch = sample_rows(9)
    clipped = rank_of(Kind.TRAINER, folder, backend, optimizer=OptimizerParams(name="sgd", lr=0.1, max_grad_norm=0.25))
    before = parameters_of(clipped)
    norm = trainer.call(update(), batch).metrics["grad_norm"][0]
    assert clipped.call(update(), batch).metrics["grad_norm"][0] == pytest.approx(norm)
    free, held = parameters_of(trainer), parameters_of(clipped)
    for name, start in before.items():
        assert torch.allclose(held[name] - start, (free[name] - start) * 0.25 / norm, atol=1e-6)
    clipped.close()


def test_rejected_tokens_leave_the_denominator(trainer: Any) -> None:
    batch = sample_rows(9)
    far = batch.ragged("old_log_probs").values - batch.ragged("rollout_log_probs").values > 0.2
    kept = Ragged(batch.ragged("loss_mask").values & ~far, batch.ragged("tokens").lengths)
    correction = CorrectionParams(name="reject", cap=float(np.exp(0.2)))
    metrics = trainer.call(update(corrections=(correction,)), batch).metrics
    rank = rank_of(Kind.TRAINER, trainer._setup.model_folder, trainer._setup.role.backend, optimizer=SGD)
    same = rank.call(update(), Batch(batch.ids, batch.prompt_ids, {**batch.columns, "loss_mask": kept})).metrics
    assert metrics["loss"][0] == pytest.approx(same["loss"][0], abs=1e-6)
    assert metrics["kl"] == pytest.approx(same["kl"], abs=1e-6)
    rank.close()


def test_a_minibatch_without_tokens_moves_nothing(trainer: Any) -> None:
    before = parameters_of(trainer)
    nothing = CorrectionParams(name="reject", cap=-1.0)
    assert trainer.call(update(corrections=(nothing,)), sample_rows(4)).metrics == {"skipped": (1.0, 1.0)}
    assert trainer.call(update(), sample_rows(4).select([])).metrics == {"skipped": (1.0, 1.0)}
    assert all(torch.equal(before[name], now) for name, now in parameters_of(trainer).items())


def test_a_gradient_that_is_not_finite_stops_the_run(trainer: Any, tmp_path: Path, told: Told) -> None:
    before = parameters_of(trainer)
    batch = sample_rows(4)
    spoilt = Ragged(np.full_like(batch.ragged("advantages").values, np.inf), batch.ragged("tokens").lengths)
    call = at_its_place(update(step=7), tmp_path)
    with pytest.raises(FlowError) as caught:
        trainer.call(call, Batch(batch.ids, batch.prompt_ids, {**batch.columns, "advantages": spoilt}))
    told(caught.value, "FR0830")
    assert all(torch.equal(before[name], now) for name, now in parameters_of(trainer).items())


def test_no_rows_give_no_columns_of_rows(trainer: Any) -> None:
    result = trainer.call(forward(), sample_rows(4).select([]))
    assert len(result.batch.ragged("old_log_probs").lengths) == 0


def test_published_weights_are_the_models(trainer: Any, folder: Path) -> None:
    expected = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    got = parameters_of(trainer)
    assert list(got) == list(expected)
    assert "lm_head.weight" not in got  # tied: left out, as in a safetensors file
    assert all(torch.equal(got[name], value) for name, value in expected.items())


def test_weights_can_be_taken_in(backend: str, folder: Path, tmp_path: Path) -> None:
    other = rank_of(Kind.TRAINER, make_tiny(tmp_path / "other", seed=5), backend)
    rank = rank_of(Kind.TRAINER, folder, backend)
    manifest = other.manifest()
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    other.write_weights(buffer)
    buffer.setflags(write=False)
    rank.read_weights(manifest, buffer, 3)
    batch = sample_rows(3)
    logs = [r.call(forward(), batch).batch.ragged("old_log_probs").values for r in (rank, other)]
    assert np.array_equal(*logs)


def test_bfloat16_computes_low_and_keeps_high(backend: str, folder: Path, tmp_path: Path) -> None:
    low = rank_of(Kind.TRAINER, folder, backend, dtype="bfloat16", optimizer=OptimizerParams(name="sgd", lr=1e-4))
    high = rank_of(Kind.TRAINER, folder, backend)
    batch = sample_rows(6)
    logs = [r.call(forward(), batch).batch.ragged("old_log_probs").values for r in (low, high)]
    difference = np.abs(logs[0] - logs[1])
    assert 0 < difference.max() < 0.05
    assert {spec.dtype for spec in low.manifest()} == {"bfloat16"}
    # Updates far below bfloat16's resolution add up: the master parameters are float32.
    before = parameters_of(low)
    for step in range(1, 4):
        low.call(update(step=step), batch)
    low.save(tmp_path)
    stored = Stored(tmp_path)
    moved = {name: stored.rows(f"model/{name}", value.shape, 0, len(value)) for name, value in before.items()}
    assert all(value.dtype is torch.float32 for value in moved.values())
    assert any(not torch.equal(moved[name].bfloat16().float(), moved[name]) for name in before)
    low.close()
    high.close()


def test_recomputation_changes_nothing(backend: str, folder: Path, trainer: Any) -> None:
    again = rank_of(Kind.TRAINER, folder, backend, optimizer=SGD, engine=EngineParams(recompute="full"))
    fires = {"first": 0, "second": 0}

    def count(name: str) -> Any:
        return lambda *_: fires.__setitem__(name, fires[name] + 1)

    for name, rank in (("first", trainer), ("second", again)):
        named = rank._rank.module.named_modules()
        attention = next(part for where, part in named if where.endswith(("self_attn", "self_attention")))
        attention.register_forward_pre_hook(count(name))
    batch = sample_rows(6)
    one, two = (r.call(update(), batch).metrics for r in (trainer, again))
    assert (one["loss"], one["grad_norm"]) == (two["loss"], two["grad_norm"])
    assert (fires["first"], fires["second"]) == (1, 2)
    again.close()


REFUSED = {
    "fsdp": (EngineParams(cross_entropy="kernel"), EngineParams(cross_entropy="fused")),
    "megatron": (EngineParams(packing=True), EngineParams(extra={"attn_implementation": "eager"})),
}


def test_what_is_not_built_is_refused(backend: str, folder: Path) -> None:
    for engine in REFUSED[backend]:
        with pytest.raises(FlowError) as caught:
            rank_of(Kind.TRAINER, folder, backend, engine=engine)
        assert caught.value.diagnostics[0].code == "FR0801"
