"""A vLLM engine that keeps an adapter beside its weights, against transformers with the adapter's sums written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM

from flowrl.backends.contract import TensorSpec
from flowrl.backends.lora import adapt, adapted_layers
from flowrl.backends.weights import bytes_of, layout
from flowrl.diag.diagnostic import FlowError
from tests.backends.engines import call_of, make_folders, prompt_rows, rows_of, setup_of

pytest.importorskip("vllm")

from flowrl.backends.generators.vllm import VllmGenerator

pytestmark = pytest.mark.vllm
LORA = {"rank": 4, "alpha": 12.0, "targets": "all_linear"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folders(tmp_path_factory.mktemp("models"))["a-True"]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmGenerator]:
    setup = setup_of(folder)
    assert setup.model is not None
    made = VllmGenerator(setup_of(folder, model=structs.replace(setup.model, lora=LORA)))
    yield made
    made.close()


def adapter(folder: Path, seed: int) -> tuple[Any, Any, Any]:
    """A manifest, its buffer, and the model with the sums."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapt(module, LORA, 0)
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, layer in adapted_layers(module):
            layer.lora_b.normal_(std=0.05)
            tensors |= {f"{name}.lora_a": layer.lora_a.clone(), f"{name}.lora_b": layer.lora_b.clone()}
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own = dict(whole.named_parameters())
    with torch.no_grad():
        for name, _ in adapted_layers(module):
            own[f"{name}.weight"].data += 3.0 * tensors[f"{name}.lora_b"] @ tensors[f"{name}.lora_a"]
    manifest = layout(((name, tuple(tensor.shape)) for name, tensor in tensors.items()), torch.float32)
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    for spec in manifest:
        buffer[spec.offset : spec.offset + spec.nbytes] = bytes_of(tensors[spec.name])
    return manifest, buffer, whole


def largest_difference(model: Any, batch: Any) -> float:
    far = 0.0
    rows = zip(*(batch.ragged(n).rows() for n in ("tokens", "loss_mask", "rollout_log_probs")), strict=True)
    for tokens, mask, said in rows:
        with torch.no_grad():
            logs = torch.log_softmax(model(torch.tensor([tokens.tolist()])).logits[0, :-1] / 0.7, dim=-1)
        own = logs.gather(-1, torch.tensor(tokens.tolist())[1:, None])[:, 0].numpy()
        far = max(far, float(np.abs(own - said[1:])[mask[1:]].max()))
    return far


def test_adapters_come_alone_and_every_version_is_the_last_one(engine: VllmGenerator, folder: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    call, asked = call_of(2), prompt_rows()
    before = rows_of(engine.call(call, asked))
    assert largest_difference(base, before) < 1e-4
    for version in (1, 2):
        manifest, buffer, whole = adapter(folder, seed=version)
        engine.read_weights(manifest, buffer, version)
        made = rows_of(engine.call(call, asked))
        assert largest_difference(whole, made) < 1e-3
        assert largest_difference(base, made) > 0.05
        assert set(made.ragged("weight_version").values.tolist()) == {version}


def test_an_adapter_of_another_model_is_refused(engine: VllmGenerator, folder: Path) -> None:
    manifest, buffer, _ = adapter(folder, seed=3)
    odd = tuple(renamed(spec) for spec in manifest)
    with pytest.raises(FlowError) as caught:
        engine.read_weights(odd, buffer, 4)
    assert caught.value.diagnostics[0].code == "FR0851"


def renamed(spec: TensorSpec) -> TensorSpec:
    return replace(spec, name=spec.name.replace("layers.1", "layers.7"))
