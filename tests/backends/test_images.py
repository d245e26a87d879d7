"""Images in generation and training: the reference is transformers' own forward pass of the same model on the pixels
that its image processor makes, a row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.images import placed
from flowrl.backends.text import Codec
from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams, OptimizerParams
from tests.backends.ranks import forward, generate, rank_of, update
from tests.backends.seeing import make_tiny_seeing, png, shown, with_images

SGD = OptimizerParams(name="sgd", lr=0.1, max_grad_norm=None)
TEXTS = ("What is here?", "And <image> then <image>.", "No picture at all, but a longer text.", "Tall")
IMAGES = ((png(0),), (png(1), png(2, 100, 60)), (), (png(3, 200, 40),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_seeing(tmp_path_factory.mktemp("seeing") / "m")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def samples(folder: Path) -> Batch:
    """Two samples of each prompt, from the generator, with their images."""
    rank = rank_of(Kind.GENERATOR, folder, "hf", max_tokens=128)
    made = rank.call(generate(samples=2, max_response_tokens=9), shown(TEXTS, IMAGES)).batch
    rank.close()
    return with_images(made, [images for images in IMAGES for _ in range(2)])


def pixels_of(folder: Path, images: Sequence[bytes]) -> dict[str, Tensor]:
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return dict(processor(images=[Image.open(BytesIO(each)) for each in images], return_tensors="pt"))


def plain_log_probs(folder: Path, plain: Any, batch: Batch) -> list[Tensor]:
    """Each row alone, with transformers' own places and positions of images; 0 at the first token."""
    found = []
    for tokens, images in zip(batch.ragged("tokens").rows(), batch.objects("images"), strict=True):
        ids = torch.tensor([tokens.tolist()])
        seen: dict[str, Tensor] = pixels_of(folder, images) if images else {}  # type: ignore[arg-type]
        kinds = (ids == plain.config.image_token_id).int()
        logits = plain(input_ids=ids, mm_token_type_ids=kinds, **seen).logits[0, :-1]
        own = torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[0, 1:, None])[:, 0]
        found.append(torch.nn.functional.pad(own, (1, 0)))
    return found


def clean(batch: Batch, folder: Path) -> Batch:
    """Rows whose response has no image token: transformers would take it for a part of an image."""
    image = Codec(folder).vision.token_id
    rows = zip(batch.ragged("tokens").rows(), batch.ragged("loss_mask").rows(), strict=True)
    good = [place for place, (ids, mask) in enumerate(rows) if not bool((ids[mask.astype(bool)] == image).any())]
    assert len(good) >= 6
    return batch.select(good)


def test_a_prompt_has_the_tokens_of_its_images(folder: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    (ids,) = Codec(folder).encode_prompts(["See <image>: <image>!"], images=[(png(0), png(2, 100, 60))])
    counts = [int(grid.prod()) // 4 for grid in pixels_of(folder, (png(0), png(2, 100, 60)))["image_grid_thw"]]
    runs = [f"<|vision_start|>{'<|image_pad|>' * count}<|vision_end|>" for count in counts]
    assert tokenizer.decode(ids) == f"user: See {runs[0]}: {runs[1]}!assistant: "


def test_images_stand_first_where_nothing_says_where() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    made, places = placed(messages, 2)
    assert places == 2
    assert made[0]["content"] == [{"type": "text", "text": "s"}]
    assert made[1]["content"] == [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "u"}]


def test_the_generators_log_probs_are_transformers_own(folder: Path, plain: Any, samples: Batch) -> None:
    batch = clean(samples, folder)
    mask = batch.ragged("loss_mask").values.astype(bool)
    expected = torch.cat(plain_log_probs(folder, plain, batch)).detach().numpy()
    np.testing.assert_allclose(batch.ragged("rollout_log_probs").values[mask], expected[mask], atol=1e-5)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("budget", [64, 4096])
def test_the_trainers_log_probs_are_the_generators(folder: Path, samples: Batch, packing: bool, budget: int) -> None:
    """However rows are padded or packed; also of rows in which the model wrote an image token itself."""
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD, engine=EngineParams(packing=packing))
    made = rank.call(forward(micro_batch_tokens=budget), samples).batch
    rank.close()
    mask = samples.ragged("loss_mask").values.astype(bool)
    own = made.ragged("old_log_probs").values[mask]
    np.testing.assert_allclose(own, samples.ragged("rollout_log_probs").values[mask], atol=1e-5)


@pytest.mark.parametrize("backend", ["fsdp", "hf"])
def test_a_scorer_gives_the_same(folder: Path, samples: Batch, backend: str) -> None:
    rank = rank_of(Kind.SCORER, folder, backend)
    made = rank.call(forward(), samples).batch
    rank.close()
    mask = samples.ragged("loss_mask").values.astype(bool)
    np.testing.assert_allclose(
        made.ragged("ref_log_probs").values[mask], samples.ragged("rollout_log_probs").values[mask], atol=1e-5
    )


def test_an_image_is_seen_by_its_own_row_alone(folder: Path, samples: Batch) -> None:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    before = rank.call(forward(), samples).batch.ragged("old_log_probs").rows()
    other = [(png(9, 60, 90),), *samples.objects("images")[1:]]
    after = rank.call(forward(), with_images(samples, other)).batch.ragged("old_log_probs").rows()  # type: ignore[arg-type]
    rank.close()
    changed = [float(np.abs(a - b).max()) for a, b in zip(before, after, strict=True)]
    assert changed[0] > 1e-3
    assert max(changed[1:]) < 1e-5


def test_an_update_moves_what_transformers_own_gradient_moves(folder: Path, samples: Batch) -> None:
    """sft's loss by hand on the plain model, one step of plain gradient descent; the encoder of images moves too."""
    batch = clean(samples, folder)
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    mask = torch.from_numpy(batch.ragged("loss_mask").values.astype(bool))
    loss = -torch.cat(plain_log_probs(folder, plain, batch))[mask].mean()
    loss.backward()
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    metrics = rank.call(update(loss="sft", micro_batch_tokens=64), batch).metrics
    assert metrics["loss"][0] == pytest.approx(loss.item(), abs=1e-5)
    moved = dict(rank._rank.module.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        expected = (parameter - 0.1 * parameter.grad).detach()
        np.testing.assert_allclose(moved[name].detach().numpy(), expected.numpy(), atol=2e-6, err_msg=name)
    encoder = [parameter.grad.abs().max() for name, parameter in plain.named_parameters() if ".visual." in name]
    assert all(float(each) > 0 for each in encoder if each is not None)
    rank.close()


def test_sft_makes_tokens_of_texts_and_images(folder: Path) -> None:
    batch = with_images(shown(TEXTS, IMAGES), IMAGES)
    batch = replace(batch, columns={**batch.columns, "response": ("a", "bc", "d", "ef")})
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    losses = [rank.call(update(loss="sft"), batch).metrics["loss"][0] for _ in range(4)]
    rank.close()
    assert losses == sorted(losses, reverse=True)


def test_ppo_begins_with_a_ratio_of_one(folder: Path, samples: Batch) -> None:
    random = np.random.default_rng(0)
    lengths = samples.ragged("tokens").lengths
    advantages = Ragged(random.normal(size=int(lengths.sum())).astype(np.float32), lengths)
    rank = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    old = rank.call(forward(), samples).batch.ragged("old_log_probs")
    batch = replace(samples, columns={**samples.columns, "old_log_probs": old, "advantages": advantages})
    metrics = rank.call(update(), batch).metrics
    rank.close()
    assert metrics["clip_fraction"][0] == 0.0
    assert abs(metrics["kl"][0]) < 1e-9
