"""Ways to train that change no number: packed rows, logits in chunks or in place, partial recomputation, other dtypes
of what is kept. Each against the plain way on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, MistralConfig, MistralForCausalLM

from flowrl.algos.log_probs import token_log_probs_and_entropy
from flowrl.backends.batch import Batch
from flowrl.backends.text import Codec
from flowrl.backends.trainers.fsdp import head as heads
from flowrl.backends.trainers.fsdp.head import Asked, asking, make_token_head
from flowrl.backends.trainers.fsdp.micro_batches import cut
from flowrl.backends.trainers.fsdp.packing import packed_cut, padding_saved
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams, KlParams, OptimizerParams
from tests.backends.ranks import forward, rank_of, sample_rows, update
from tests.backends.tiny import make_tiny

SGD = OptimizerParams(name="sgd", lr=0.1, max_grad_norm=None)
WAYS = {
    "packing": {"packing": True},
    "chunked": {"cross_entropy": "chunked"},
    "in place": {"cross_entropy": "in_place"},
    "selective": {"recompute": "selective"},
    "packed chunks, recomputed": {"packing": True, "cross_entropy": "chunked", "recompute": "full"},
}
LORA = {"rank": 4, "alpha": 8, "targets": "all_linear"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("ways") / "m")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few tokens are several chunks."""
    monkeypatch.setattr(heads, "CHUNK_ELEMENTS", 700)


@pytest.fixture
def plain(folder: Path) -> Iterator[Any]:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    yield rank
    rank.close()


def trainer(folder: Path, **engine: Any) -> Any:
    return rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD, engine=EngineParams(**engine))


def asked(**params: Any) -> Any:
    return update(entropy_coef=0.01, kl=KlParams(coef=0.1, form="k3"), old_log_probs="recompute", **params)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("budget", [25, 10_000])
def test_losses_and_gradients_are_those_of_the_plain_way(folder: Path, plain: Any, way: str, budget: int) -> None:
    other = trainer(folder, **WAYS[way])
    batch = sample_rows(9)
    for call in (forward(micro_batch_tokens=budget), forward(micro_batch_tokens=budget, temperature=0.7)):
        for name in ("old_log_probs", "entropy"):
            one, two = (rank.call(call, batch).batch.ragged(name).values for rank in (plain, other))
            assert np.abs(one - two).max() < 2e-6, name
    for step in (1, 2):
        one, two = (rank.call(asked(step=step, micro_batch_tokens=budget), batch).metrics for rank in (plain, other))
        assert two["loss"][0] == pytest.approx(one["loss"][0], abs=1e-6)
        assert two["grad_norm"][0] == pytest.approx(one["grad_norm"][0], rel=1e-5)
    own = dict(other._rank.module.named_parameters())
    for name, parameter in plain._rank.module.named_parameters():
        assert torch.allclose(own[name], parameter, atol=1e-6), name
    other.close()


def test_adapters_with_packed_rows_and_chunks(folder: Path) -> None:
    ranks = [
        rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD, lora=LORA, engine=EngineParams(**engine))
        for engine in ({}, WAYS["packed chunks, recomputed"])
    ]
    for step in (1, 2, 3):
        one, two = (rank.call(asked(step=step), sample_rows(9, seed=step)).metrics for rank in ranks)
        assert two["loss"][0] == pytest.approx(one["loss"][0], abs=1e-6)
        assert two["grad_norm"][0] == pytest.approx(one["grad_norm"][0], rel=1e-5)


def test_packed_rows_of_a_critic(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path)
    Codec(folder).save(tmp_path)
    ranks = [
        rank_of(Kind.TRAINER, tmp_path, "fsdp", head="scalar", optimizer=SGD, engine=EngineParams(packing=packing))
        for packing in (False, True)
    ]
    batch = sample_rows(7)
    one, two = (r.call(forward("values", micro_batch_tokens=30), batch).batch.ragged("values").values for r in ranks)
    assert one.any()
    assert np.abs(one - two).max() < 1e-6 * np.abs(one).max()  # a few units in the last place of values up to 7
    losses = [r.call(update(loss="value", micro_batch_tokens=30), batch).metrics["loss"][0] for r in ranks]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_windows_of_packed_rows(tmp_path: Path) -> None:
    """Mistral sees its last tokens only."""
    config = MistralConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        head_dim=8,
    )
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    packed, plain = (trainer(tmp_path, packing=packing) for packing in (True, False))
    batch = sample_rows(9, longest=20)
    one, two = (r.call(forward(), batch).batch.ragged("old_log_probs").values for r in (packed, plain))
    assert np.abs(one - two).max() < 2e-6


def test_packing_saves_padding_and_says_so(folder: Path) -> None:
    batch, rank = sample_rows(40, longest=30), trainer(folder, packing=True)
    seen: list[int] = []
    module = rank._rank.module
    module.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True)
    metrics = rank.call(update(micro_batch_tokens=64), batch).metrics
    lengths = batch.ragged("tokens").lengths
    assert sum(seen) == lengths.sum()
    padded = sum(len(rows) * lengths[rows].max() for rows in cut(lengths, 64))
    assert metrics["padding_saved"] == (pytest.approx(1 - lengths.sum() / padded), 40.0)
    assert metrics["padding_saved"][0] > 0.02


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 60), st.booleans())
@settings(max_examples=30, deadline=None)
def test_packed_micro_batches_are_a_partition_within_the_budget(lengths: list[int], budget: int, grouped: bool) -> None:
    sizes = np.asarray(lengths, dtype=np.int64)
    groups = np.arange(len(sizes)) // 3 if grouped else None
    parts = packed_cut(sizes, budget, groups)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(sizes)))
    for part in parts:
        assert sizes[part].sum() <= budget or len({int(g) for g in (groups[part] if grouped else part)}) == 1
        if groups is not None:
            assert all(np.isin(np.flatnonzero(groups == group), part).all() for group in groups[part])
    if not grouped:  # first fit decreasing leaves at most one part at most half full
        assert sum(2 * sizes[part].sum() <= budget for part in parts) <= 1
    assert 0.0 <= padding_saved(sizes, cut(sizes, budget)) < 1.0


def test_a_row_of_a_pack_sees_no_other(folder: Path) -> None:
    rank, batch = trainer(folder, packing=True), sample_rows(6)
    call = forward()
    whole = rank.call(call, batch).batch.ragged("old_log_probs").rows()
    for row in range(6):
        (alone,) = rank.call(call, batch.select([row])).batch.ragged("old_log_probs").rows()
        assert np.abs(alone - whole[row]).max() < 2e-6


def test_a_minibatch_without_a_token_of_ones_own_is_run(folder: Path) -> None:
    batch = sample_rows(4)
    lengths = batch.ragged("tokens").lengths
    nothing = {**batch.columns, "loss_mask": type(batch.ragged("tokens"))(np.zeros(lengths.sum(), np.bool_), lengths)}
    made = trainer(folder, packing=True).call(forward(), Batch(batch.ids, batch.prompt_ids, nothing)).batch
    assert not made.ragged("old_log_probs").values.any()


class Widest(TorchDispatchMode):
    """The largest float32 tensor that is made inside."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self._vocab, self.most = vocab, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.is_contiguous() and made.shape[-1:] == (self._vocab,):
            self.most = max(self.most, made.numel() // self._vocab)
        return made


def test_chunked_logits_never_exist_whole(folder: Path) -> None:
    """Rows of logits that exist at once, by the sizes of all tensors that torch makes."""
    batch, most = sample_rows(30, longest=30), {}
    for way in ("whole", "chunked"):
        rank = trainer(folder, cross_entropy=way)
        vocab = rank._rank.module.config.vocab_size
        with Widest(vocab) as seen:
            rank.call(asked(), batch)
        most[way] = seen.most
    assert most["whole"] > 500
    assert most["chunked"] <= 700 // 99


def test_gradients_of_the_chunked_head_by_finite_differences(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert make_token_head(model) is None
    own: Any = model.get_output_embeddings().double()
    torch.manual_seed(1)
    hidden = torch.randn(9, 32, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 99, (9,))

    def of(states: Tensor, weight: Tensor) -> Tensor:
        own.weight.data = weight.data
        made = heads._Chunked.apply(states, weight, targets, 0.7, 4, True)
        return torch.stack(made)

    weight = own.weight.detach().clone().requires_grad_()
    wide = token_log_probs_and_entropy(hidden @ weight.T, targets, 0.7)
    assert torch.allclose(of(hidden, weight), torch.stack(wide), atol=1e-12)
    upstream = torch.randn(2, 9, dtype=torch.float64)
    one = torch.autograd.grad((torch.stack(wide) * upstream).sum(), (hidden, weight))
    two = torch.autograd.grad((of(hidden, weight) * upstream).sum(), (hidden, weight))
    assert torch.allclose(one[0], two[0], atol=1e-12)
    assert torch.allclose(one[1], two[1], atol=1e-5)  # summed in float32
    with asking(own, Asked(targets, 0.7, True)):
        assert own(hidden).shape == (9, 2)
    assert own(hidden).shape == (9, 99)


def test_a_gradient_in_place_takes_the_memory_of_the_logits() -> None:
    torch.manual_seed(0)
    start, targets = torch.randn(6, 11), torch.randint(0, 11, (6,))
    grads = []
    for in_place in (False, True):
        leaf = start.clone().requires_grad_()
        logits = leaf * 1.0
        made = token_log_probs_and_entropy(logits, targets, 0.8, chunk_elements=22, in_place=in_place)
        (made[0].sum() + 0.3 * made[1].sum()).backward()
        grads.append(leaf.grad)
        assert torch.equal(logits.detach(), start) != in_place
    assert torch.equal(*grads)


def test_a_head_that_does_more_is_refused(folder: Path, tmp_path: Path) -> None:
    from transformers import CohereConfig, CohereForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    CohereForCausalLM(CohereConfig(vocab_size=99, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(FlowError) as caught:
        trainer(tmp_path, cross_entropy="chunked")
    assert caught.value.diagnostics[0].code == "FR0801"
    assert "logit_scale" in str(caught.value)


def test_selective_recomputation_makes_products_once(folder: Path) -> None:
    """Forward and backward of full recomputation make a layer's products three times over, of selective twice."""

    class Products(TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.made += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return func(*args, **(kwargs or {}))

    counts = {}
    for way in ("none", "selective", "full"):
        rank = trainer(folder, recompute=way)
        with Products() as seen:
            rank.call(asked(), sample_rows(6))
        counts[way] = seen.made
    assert counts["none"] == counts["selective"] < counts["full"]


@pytest.mark.parametrize("master", ["float32", "bfloat16"])
def test_what_is_kept_has_the_dtype_that_is_asked_for(folder: Path, plain: Any, master: str) -> None:
    adam = OptimizerParams(name="adamw", lr=1e-4)
    engine = EngineParams(master_dtype=master, gradient_dtype="bfloat16")
    rank = rank_of(Kind.TRAINER, folder, "fsdp", dtype="bfloat16", optimizer=adam, engine=engine)
    batch = sample_rows(6)
    one, two = (r.call(forward(), batch).batch.ragged("old_log_probs").values for r in (plain, rank))
    assert 0 < np.abs(one - two).max() < 0.05
    rank.call(asked(), batch)
    kinds = {p.dtype for p in rank._rank.module.parameters()}
    assert kinds == {getattr(torch, master)}
    assert {v.dtype for s in rank._optimizer.state.values() for k, v in s.items() if k != "step"} == kinds
    rank.close()
