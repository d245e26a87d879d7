"""Shapes of models: parameter counts against published ones and transformers; config.json, inline shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import TypeAdapter

import flowrl.machine.models
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.config import MOST_LAYERS, shape_of_config
from flowrl.machine.models import CARDS, FAMILIES, card_entries, shape_of
from flowrl.machine.shape import ModelShape
from flowrl.machine.tokenizers import vocab_size
from flowrl.spec.document import Layers

TINY: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "mistral": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("entry", card_entries(), ids=lambda entry: entry["names"][0])
def test_cards_have_the_published_number_of_parameters(entry: dict[str, Any]) -> None:
    for name in entry["names"]:
        shape = CARDS[name]
        beside = next_token_layer(shape, "head" in entry["published_with"]) if "published_with" in entry else 0
        assert shape.parameters + beside == pytest.approx(entry["published"], rel=0.005)
    assert entry["source"].startswith(("https://huggingface.co/", "https://arxiv.org/"))


def next_token_layer(shape: ModelShape, own_embedding: bool) -> int:
    """What files of some models hold beside the model: one more layer, which takes a token's embedding and the last
    hidden state, both normed and joined by a matrix (DeepSeek-V3, arXiv:2412.19437, section 2.2), and a last norm;
    some files hold embedding and head a second time."""
    h = shape.hidden
    feed_forward = shape.sparse_parameters if shape.experts else shape.dense_parameters
    layer = shape.attention_parameters + feed_forward + 2 * h
    return layer + 2 * h * h + 3 * h + (2 * shape.vocab * h if own_embedding else 0)


def test_cards_of_mixtures_have_the_published_active_parameters() -> None:
    entries = [entry for entry in card_entries() if "published_active" in entry]
    assert len(entries) == 3
    for entry in entries:
        assert CARDS[entry["names"][0]].active_parameters == pytest.approx(entry["published_active"], rel=0.005)
    looked_up = [entry for entry in card_entries() if "published_multiplied" in entry]
    assert len(looked_up) == 2
    for entry in looked_up:
        shape = CARDS[entry["names"][0]]
        assert shape.multiplied_parameters == pytest.approx(entry["published_multiplied"], rel=0.005)


def test_a_hub_id_stands_in_one_card() -> None:
    names = [name for entry in card_entries() for name in entry["names"]]
    assert len(names) == len(set(names)) == len(CARDS)
    assert len({name.lower() for name in names}) == len(names)


def test_files_of_cards_are_those_that_are_read() -> None:
    folder = Path(flowrl.machine.models.__file__).parent / "catalogue" / "models"
    assert sorted(path.stem for path in folder.glob("*.toml")) == sorted(FAMILIES)


def tiny_config(architecture: str) -> transformers.PretrainedConfig:
    return transformers.AutoConfig.for_model(
        architecture,
        vocab_size=160,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        max_position_embeddings=128,
        **TINY[architecture],
    )


@pytest.mark.parametrize("architecture", sorted(TINY))
@pytest.mark.parametrize("head", ["lm", "scalar"])
def test_every_architecture_counts_as_transformers_does(architecture: str, head: str) -> None:
    """The second implementation: transformers' own module tree, on the meta device."""
    config = tiny_config(architecture)
    config.num_labels = 1
    make = transformers.AutoModelForCausalLM if head == "lm" else transformers.AutoModelForSequenceClassification
    with torch.device("meta"):
        model = make.from_config(config)
    shape = shape_of_config(config.to_dict(), path="config.json")
    shape = shape if head == "lm" else ModelShape(**{**fields(shape), "head": "scalar"})
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    layers = [name for name, _ in model.named_parameters() if ".layers.0." in name]
    assert shape.layer_parameters == sum(dict(model.named_parameters())[name].numel() for name in layers)


def fields(shape: ModelShape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in ModelShape.__dataclass_fields__}


def test_a_folder_is_read_relative_to_the_flow(tmp_path: Path) -> None:
    config = tiny_config("qwen2")
    config.architectures = ["Qwen2ForSequenceClassification"]
    config.save_pretrained(tmp_path / "models" / "mine")
    shape = shape_of("./models/mine", tmp_path, head="scalar")
    assert (shape.layers, shape.hidden, shape.head) == (3, 64, "scalar")
    assert shape.origin == "./models/mine/config.json"


def code_of(call: Any) -> str:
    with pytest.raises(FlowError) as caught:
        call()
    return caught.value.diagnostics[0].code


def test_faults_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    assert code_of(lambda: shape_of("./nowhere", tmp_path)) == "FR0401"
    assert code_of(lambda: shape_of("./bad", tmp_path)) == "FR0401"
    assert code_of(lambda: shape_of("Qwen/NoSuchModel-9000B", tmp_path)) == "FR0402"
    for text in ("{", "[]", '{"model_type": "qwen2"}', '{"model_type": "qwen2", "hidden_size": "many"}'):
        (tmp_path / "bad" / "config.json").write_text(text)
        assert code_of(lambda: shape_of("./bad", tmp_path)) == "FR0403"
    (tmp_path / "bad" / "config.json").write_text('{"a":' * 5000)
    assert code_of(lambda: shape_of("./bad", tmp_path)) == "FR0403"
    (tmp_path / "bad" / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert code_of(lambda: shape_of("./bad", tmp_path)) == "FR0404"


def test_a_near_hub_id_is_named() -> None:
    with pytest.raises(FlowError) as caught:
        shape_of("qwen/qwen2.5-7b-instrct")
    assert "Qwen/Qwen2.5-7B-Instruct" in caught.value.diagnostics[0].helps[0].text


def test_heads_must_match() -> None:
    assert shape_of("Qwen/Qwen2.5-7B", head="scalar").output_width == 1
    assert code_of(lambda: shape_of("Skywork/Skywork-Reward-V2-Qwen3-8B", head="lm")) == "FR0405"
    assert code_of(lambda: shape_of("Qwen/Qwen2.5-7B", head="denoiser")) == "FR0405"


def test_a_stage_hands_its_shape_on() -> None:
    stages = {"sft.actor_train": CARDS["Qwen/Qwen2.5-0.5B"]}
    assert shape_of("stages.sft.actor_train", stages=stages) is stages["sft.actor_train"]
    assert code_of(lambda: shape_of("stages.sft.critic", stages=stages)) == "FR0406"


INLINE = {
    "architecture": "qwen2",
    "tokenizer": "characters",
    "hidden_size": 192,
    "layers": 4,
    "heads": 4,
    "ffn_size": 512,
    "max_positions": 64,
    "tie_embeddings": True,
}


def test_an_inline_shape_counts_as_the_model_made_from_it() -> None:
    shape = shape_of("inline", inline=INLINE)
    config = transformers.Qwen2Config(
        vocab_size=vocab_size("characters"),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.Qwen2ForCausalLM(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.kv_heads == 4


@pytest.mark.parametrize(
    "change",
    [{"heads": 5}, {"heads": 64}, {"kv_heads": 3}, {"tokenizer": "words"}, {"vocab_size": 7}],
    ids=lambda change: next(iter(change)),
)
def test_inline_shapes_that_do_not_divide(change: dict[str, Any]) -> None:
    assert code_of(lambda: shape_of("inline", inline=INLINE | change)) == "FR0407"


def test_an_inline_architecture_that_is_not_made() -> None:
    assert code_of(lambda: shape_of("inline", inline=INLINE | {"architecture": "llama"})) == "FR0404"


def test_kv_cache_of_a_token() -> None:
    """Published: 56 KiB a token for Qwen2.5-7B, 128 KiB for Llama-3.1-8B, 512 KiB for Llama-2-7B, all in 16 bits."""
    sizes = {"Qwen/Qwen2.5-7B": 56, "meta-llama/Llama-3.1-8B": 128, "meta-llama/Llama-2-7b-hf": 512}
    for name, kib in sizes.items():
        assert CARDS[name].kv_bytes_per_token(2) == kib * 1024
    assert CARDS["Qwen/Qwen2.5-7B"].kv_bytes_per_token(2, tp=8) == 14 * 1024, "one head a device, copied"


def test_a_shape_in_a_flow_has_as_many_layers_as_one_in_a_config() -> None:
    assert TypeAdapter(Layers).json_schema()["maximum"] == MOST_LAYERS
