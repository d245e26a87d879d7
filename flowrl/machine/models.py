"""From what a flow calls a model to its ModelShape: a card of the catalogue, a config.json, or an inline shape.

Takes a source as it stands in the flow and the folder where relative paths start; gives a ModelShape. Opens nothing
but the cards of catalogue/models and config.json: no weights, no network.
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

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.near import edit_distance, near_names
from flowrl.diag.span import Span
from flowrl.machine.attention import DeltaNet, LatentAttention, Mamba2
from flowrl.machine.config import ARCHITECTURES, replace_help, shape_of_config, unknown_architecture
from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape
from flowrl.machine.tokenizers import TOKENIZERS, vocab_size

INLINE_ARCHITECTURES = ("qwen2",)
"""What backends/models.py can make from a shape."""
LARGEST_CONFIG = 10 * 2**20
"""Bytes; a config.json has a few thousand, with quantization told layer by layer some hundred thousand."""


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
        helps = (
            [replace_help(source, source.rstrip("/").removesuffix(name) + near[0], "a folder", span)] if near else []
        )
        raise FlowError(diagnose("FR0401", span, source=source, place=place, helps=helps))
    by_lower_case = {known.lower(): known for known in CARDS}
    near = [known for known in near_names(source.lower(), by_lower_case) if edit_distance(source.lower(), known) <= 2]
    helps = [replace_help(source, by_lower_case[near[0]], "a model", span)] if near else []
    raise FlowError(diagnose("FR0402", span, source=source, place=place, helps=helps))


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
    helps = [replace_help(source, f"stages.{near[0]}", "a role", span)] if near else []
    known = ", ".join(f"stages.{name}" for name in stages) or "none: no stage comes before this one"
    raise FlowError(diagnose("FR0406", span, source=source, known=known, helps=helps))


# -- config.json ------------------------------------------------------------------------------------------------------


def _from_folder(place: Path, source: str, span: Span | None) -> ModelShape:
    path = place / "config.json"
    if not isfile(path):
        raise FlowError(diagnose("FR0401", span, source=source, place=path))
    try:
        config: object = json.loads(_config_bytes(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        raise FlowError(diagnose("FR0403", span, path=path, fault=str(failure))) from None
    if not isinstance(config, dict):
        raise FlowError(diagnose("FR0403", span, path=path, fault="it holds no mapping"))
    return shape_of_config(cast("dict[str, Any]", config), path=f"{source}/config.json", span=span)


def _config_bytes(path: Path) -> bytes:
    """Raises OSError, and ValueError for a file that is too large; its size is looked at first."""
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"it has more than {LARGEST_CONFIG:,} bytes")
    return path.read_bytes()


# -- inline -----------------------------------------------------------------------------------------------------------


def _from_inline(inline: Mapping[str, Any], name: str, span: Span | None) -> ModelShape:
    architecture = str(inline.get("architecture", "qwen2"))
    if architecture not in INLINE_ARCHITECTURES:
        raise FlowError(unknown_architecture(architecture, INLINE_ARCHITECTURES, "an inline shape", span))
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

FAMILIES = ("qwen", "qwen_moe", "llama", "deepseek", "mistral", "gemma", "opt", "others", "rewards")
"""Files of catalogue/models."""

_CARD_ONLY = (
    "names",
    "source",
    "published",
    "published_with",
    "published_active",
    "published_multiplied",
    "published_note",
)


def _read_cards() -> dict[str, ModelShape]:
    entries: list[dict[str, Any]] = card_entries()
    return {name: _card(name, entry) for entry in entries for name in entry["names"]}


def card_entries() -> list[dict[str, Any]]:
    """The catalogue as written, with the published counts and their sources."""
    folder = files("flowrl.machine").joinpath("catalogue", "models")
    texts = [folder.joinpath(f"{family}.toml").read_text(encoding="utf-8") for family in FAMILIES]
    return [entry for text in texts for entry in tomllib.loads(text)["card"]]


def _card(name: str, entry: dict[str, Any]) -> ModelShape:
    numbers = {key: value for key, value in entry.items() if key not in _CARD_ONLY}
    numbers.setdefault("head_dim", numbers["hidden"] // numbers["heads"])
    if "latent" in numbers:
        numbers["latent"] = LatentAttention(**numbers["latent"])
    if "linear" in numbers:
        make = Mamba2 if "state_dim" in numbers["linear"] else DeltaNet
        numbers["linear"] = make(**numbers["linear"])
    if numbers.get("head") == "denoiser":
        unused = {"kv_heads": numbers["heads"], "vocab": 0, "max_positions": 0, "tied": False, "qk_norm": True}
        return DenoiserShape(name=name, origin=f"card {name}", **unused, **numbers)
    fixed: dict[str, Any] = {**ARCHITECTURES[numbers["architecture"]], **numbers}
    return ModelShape(name=name, origin=f"card {name}", **fixed)


CARDS: Mapping[str, ModelShape] = _read_cards()
"""By hub id."""
