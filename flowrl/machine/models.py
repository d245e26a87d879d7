"""From what a flow calls a model to its ModelShape: a card of the catalogue, a config.json, or an inline shape.

Takes a source as it stands in the flow and the folder where relative paths start; gives a ModelShape. Opens nothing
but catalogue/models.toml and config.json: no weights, no network.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, cast

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Respelt, diagnose
from flowrl.diag.near import edit_distance, near_names
from flowrl.diag.span import Span
from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape
from flowrl.machine.tokenizers import TOKENIZERS, vocab_size

ARCHITECTURES: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True},
    "qwen2_5_vl": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
}
"""`model_type` of config.json → what is fixed by the architecture and not written in the file (transformers'
modeling_*.py: Qwen2Attention has biases on q, k and v; Qwen3Attention normalises q and k per head)."""

MIXTURES = ("mixtral", "qwen3_moe")
"""Architectures whose feed-forward is a mixture of experts (transformers 5 writes `num_local_experts` for both)."""

INLINE_ARCHITECTURES = ("qwen2",)
"""What backends/models.py can make from a shape."""


def shape_of(
    source: str,
    folder: str | Path = ".",
    *,
    inline: Mapping[str, Any] | None = None,
    head: str = "lm",
    stages: Mapping[str, ModelShape] | None = None,
    name: str = "",
    span: Span | None = None,
) -> ModelShape:
    """The shape of a model with a head of kind `head` on it.

    `source` is a hub id, a folder (relative to `folder`) or `stages.NAME.ROLE`, looked up as `NAME.ROLE` in `stages`;
    with `inline` it is not read. `name` and `span` are the model's in the flow, for the diagnostic.
    Raises FlowError FR0401 to FR0407.
    """
    if inline is not None:
        shape = _from_inline(inline, name, span)
    elif source.startswith("stages."):
        shape = _from_stage(source, stages or {}, span)
    else:
        shape = _from_source(source, Path(folder), span)
    return _with_head(shape, head, name or source, span)


def _from_source(source: str, folder: Path, span: Span | None) -> ModelShape:
    place = folder / Path(source).expanduser()
    if isdir(place):
        return _from_folder(place, source, span)
    if source in CARDS:
        return CARDS[source]
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        name = Path(source).name
        near = near_names(name, _folders(place.parent))
        helps = [_replace(source, source.rstrip("/").removesuffix(name) + near[0], "a folder", span)] if near else []
        raise FlowError(diagnose("FR0401", span, source=source, place=place, helps=helps))
    by_lower_case = {known.lower(): known for known in CARDS}
    near = [known for known in near_names(source.lower(), by_lower_case) if edit_distance(source.lower(), known) <= 2]
    helps = [_replace(source, by_lower_case[near[0]], "a model", span)] if near else []
    raise FlowError(diagnose("FR0402", span, source=source, place=place, helps=helps))


def _replace(old: str, new: str, what: str, span: Span | None) -> Help:
    return Respelt(text=f"{what} with a near name exists: `{new}` for `{old}`", span=span, old=old, new=new)


def _folders(parent: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        return []


def _from_stage(source: str, stages: Mapping[str, ModelShape], span: Span | None) -> ModelShape:
    key = source.removeprefix("stages.")
    if key in stages:
        return stages[key]
    near = near_names(key, list(stages))
    helps = [_replace(source, f"stages.{near[0]}", "a role", span)] if near else []
    known = ", ".join(f"stages.{name}" for name in stages) or "none: no stage comes before this one"
    raise FlowError(diagnose("FR0406", span, source=source, known=known, helps=helps))


# -- config.json ------------------------------------------------------------------------------------------------------


def _from_folder(place: Path, source: str, span: Span | None) -> ModelShape:
    path = place / "config.json"
    if not isfile(path):
        raise FlowError(diagnose("FR0401", span, source=source, place=path))
    try:
        config: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise FlowError(diagnose("FR0403", span, path=path, fault=str(failure))) from None
    if not isinstance(config, dict):
        raise FlowError(diagnose("FR0403", span, path=path, fault="it holds no mapping"))
    return shape_of_config(cast("dict[str, Any]", config), path=f"{source}/config.json", span=span)


def shape_of_config(config: Mapping[str, Any], *, path: str | Path, span: Span | None = None) -> ModelShape:
    """The shape that a Hugging Face config.json describes. Raises FlowError FR0403 (keys) or FR0404 (architecture)."""
    architecture = str(config.get("model_type"))
    if architecture not in ARCHITECTURES:
        raise FlowError(_unknown_architecture(architecture, tuple(ARCHITECTURES), str(path), span))

    def number(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            fault = f"`{key}` is missing" if value is None else f"`{key}` is {value!r}, not a number from 1 up"
            raise FlowError(diagnose("FR0403", span, path=path, fault=fault))
        return value

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        fault = "it mixes dense and sparse layers, which the memory model does not know"
        raise FlowError(diagnose("FR0403", span, path=path, fault=fault))
    expert_key = next((key for key in ("num_local_experts", "num_experts") if key in config), "num_experts")
    sparse = architecture in MIXTURES
    vision = cast("dict[str, Any]", config.get("vision_config") or {})
    names: list[str] = config.get("architectures") or []
    attention_bias = bool(config.get("attention_bias", False))
    fixed = ARCHITECTURES[architecture]
    return ModelShape(
        name=str(path),
        origin=str(path),
        architecture=architecture,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", max(1, hidden // heads)),
        ffn=number("moe_intermediate_size" if architecture == "qwen3_moe" else "intermediate_size"),
        vocab=number("vocab_size"),
        max_positions=number("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        head="scalar" if any(name.endswith("ForSequenceClassification") for name in names) else "lm",
        qkv_bias=fixed.get("qkv_bias", attention_bias),
        output_bias=attention_bias and architecture != "qwen2",
        ffn_bias=bool(config.get("mlp_bias", False)),
        qk_norm=fixed.get("qk_norm", False),
        vision_parameters=_vision_parameters(vision, hidden) if architecture == "qwen2_5_vl" else 0,
        experts=number(expert_key) if sparse else 0,
        experts_per_token=number("num_experts_per_tok") if sparse else 0,
    )


def _vision_parameters(vision: Mapping[str, Any], out: int) -> int:
    """Qwen2.5-VL's image encoder: patches of 2 x 14 x 14 pixels, blocks with biases, a merger of 2 x 2 patches."""
    h, ffn = int(vision.get("hidden_size", 1280)), int(vision.get("intermediate_size", 3420))
    block = 4 * h * h + 4 * h + 3 * h * ffn + 2 * ffn + h + 2 * h
    patch = 3 * int(vision.get("temporal_patch_size", 2)) * int(vision.get("patch_size", 14)) ** 2 * h
    merged = h * int(vision.get("spatial_merge_size", 2)) ** 2
    merger = h + merged * merged + merged + merged * out + out
    return int(vision.get("depth", 32)) * block + patch + merger


def _unknown_architecture(found: str, known: tuple[str, ...], where: str, span: Span | None) -> Diagnostic:
    near = near_names(found, list(known))
    helps = [_replace(found, near[0], "an architecture", span)] if near else []
    return diagnose("FR0404", span, found=found, where=where, known=", ".join(known), helps=helps)


# -- inline -----------------------------------------------------------------------------------------------------------


def _from_inline(inline: Mapping[str, Any], name: str, span: Span | None) -> ModelShape:
    architecture = str(inline.get("architecture", "qwen2"))
    if architecture not in INLINE_ARCHITECTURES:
        raise FlowError(_unknown_architecture(architecture, INLINE_ARCHITECTURES, "an inline shape", span))
    heads, hidden = int(inline["heads"]), int(inline["hidden_size"])
    kv_heads = int(inline.get("kv_heads") or heads)
    fault = _inline_fault(inline, hidden, heads, kv_heads)
    if fault is not None:
        raise FlowError(diagnose("FR0407", span, model=name or "the model", fault=fault))
    return ModelShape(
        name=name,
        origin="inline shape",
        architecture=architecture,
        layers=int(inline["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=int(inline["ffn_size"]),
        vocab=vocab_size(str(inline["tokenizer"])),
        max_positions=int(inline["max_positions"]),
        tied=bool(inline.get("tie_embeddings", False)),
        qkv_bias=ARCHITECTURES[architecture].get("qkv_bias", False),
    )


def _inline_fault(inline: Mapping[str, Any], hidden: int, heads: int, kv_heads: int) -> str | None:
    tokenizer, vocab = str(inline["tokenizer"]), inline.get("vocab_size")
    if tokenizer not in TOKENIZERS:
        return f"`tokenizer: {tokenizer}` is not one of {', '.join(TOKENIZERS)}"
    if vocab is not None and vocab != vocab_size(tokenizer):
        return f"`vocab_size` is {vocab:,}, the tokenizer `{tokenizer}` has {vocab_size(tokenizer):,} tokens"
    if hidden % heads:
        return f"`hidden_size` {hidden:,} does not divide into {heads:,} heads: {hidden % heads:,} left over"
    if (hidden // heads) % 2:
        return f"{hidden:,} / {heads:,} = {hidden // heads:,} is odd, and rotary positions turn pairs of numbers"
    if heads % kv_heads:
        return f"{heads:,} `heads` do not divide among {kv_heads:,} `kv_heads`: {heads % kv_heads:,} left over"
    return None


def _with_head(shape: ModelShape, head: str, name: str, span: Span | None) -> ModelShape:
    if head == shape.head:
        return shape
    if "denoiser" in (head, shape.head):
        fault = f"{shape.origin} is a {'denoiser: it has no tokens' if head != 'denoiser' else 'language model'}"
        raise FlowError(diagnose("FR0405", span, model=name, head=head, fault=fault))
    if shape.head == "scalar":
        fault = f"{shape.origin} is a reward model: it has one number per token and no logits"
        raise FlowError(diagnose("FR0405", span, model=name, head=head, fault=fault))
    return dataclasses.replace(shape, head=head)


# -- cards ------------------------------------------------------------------------------------------------------------

_CARD_ONLY = ("names", "source", "published", "published_active", "published_note")


def _read_cards() -> dict[str, ModelShape]:
    entries: list[dict[str, Any]] = card_entries()
    return {name: _card(name, entry) for entry in entries for name in entry["names"]}


def card_entries() -> list[dict[str, Any]]:
    """The catalogue as written, with the published counts and their sources."""
    text = files("flowrl.machine").joinpath("catalogue/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["card"]


def _card(name: str, entry: dict[str, Any]) -> ModelShape:
    numbers = {key: value for key, value in entry.items() if key not in _CARD_ONLY}
    numbers.setdefault("head_dim", numbers["hidden"] // numbers["heads"])
    if numbers.get("head") == "denoiser":
        unused = {"kv_heads": numbers["heads"], "vocab": 0, "max_positions": 0, "tied": False, "qk_norm": True}
        return DenoiserShape(name=name, origin=f"card {name}", **unused, **numbers)
    fixed: dict[str, Any] = {**ARCHITECTURES[numbers["architecture"]], **numbers}
    return ModelShape(name=name, origin=f"card {name}", **fixed)


CARDS: Mapping[str, ModelShape] = _read_cards()
"""By hub id."""
