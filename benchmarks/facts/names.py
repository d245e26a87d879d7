"""Loose names of models, as papers and tickets write them → hub ids of cards. Rules, no list of records.

A name is cut into words: a family (`qwen2.5`, `math`), sizes (`7b`, `a3b`) and words that do not change a shape
(`instruct`). The ids of the catalogue are cut the same way, and the family and size must be those of a card:

- a size may differ from the id's if it is within 4 % of what the card counts (`OPT-13.2B`, `LLaMA-33B`);
- `Llama` without a version is the first of Llama 2, Llama 3.1, CodeLlama and LLaMA that has the size;
- a distilled R1 without its base is the one of Qwen, else of Llama;
- a name in brackets counts if the name before it says nothing;
- several names (`V3/R1`) count if all are one shape; a range, a list or a family without a size are no model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape

SAME_SHAPE = frozenset(
    ("instruct", "base", "chat", "it", "pt", "hf", "thinking", "preview", "bf16", "moe", "nvidia", "meta", "deepseek")
)
"""Words that do not change the shape: stages of training, formats, and makers before the family's name."""

_VERSIONED = re.compile(r"(qwen|llama|gemma|smollm|glm|kimi)[ _-]*(k?\d+(?:\.\d+)?)(?![\d.]*[bm])")
_SIZE, _ACTIVE = re.compile(r"(\d+(?:\.\d+)?)([mbt])"), re.compile(r"a(\d+(?:\.\d+)?)b")
_DATED = re.compile(r"\d{4}|v0\.\d")
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_TOLERANCE = 0.04


@dataclass(frozen=True, slots=True)
class _Words:
    family: frozenset[str]
    size: float | None = None
    """Parameters as written."""
    active: float | None = None


def card_by_loose_name(text: str) -> str | None:
    """The hub id of the card that `text` names; None if it names no model, several of other shapes, or none that has a
    card."""
    found = _one(text)
    if found is not None:
        return found
    bare = re.sub(r"\(.*?\)", " ", text).strip()
    inside = re.findall(r"\((.*?)\)", text)
    for each in [bare, *inside, f"{bare} {inside[0]}" if inside else ""]:
        found = _several(each)
        if found is not None:
            return found
    return None


def _several(text: str) -> str | None:
    """`V3/R1`: one card if all parts are one shape."""
    if re.search(r"\.\.|,|@|…", text):
        return None
    parts = [part.strip() for part in text.split("/")]
    if len(parts) == 1 or re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return _one(parts[-1])
    found = [_one(part) for part in parts]
    shapes = {None if name is None else _bare(CARDS[name]) for name in found}
    return found[0] if len(shapes) == 1 else None


def _bare(shape: ModelShape) -> ModelShape:
    return replace(shape, name="", origin="", max_positions=0)


def _one(text: str) -> str | None:
    exact = _ids().get(text.strip().lower())
    if exact is not None:
        return exact
    words = _words(text)
    tries = [replace(words, family=family) for family in _families(words.family)]
    named = next((name for each in tries if (name := _match(each))), None)
    near = sorted((*found, name) for each in tries for name, *found in _near(each))
    return named or (near[0][-1] if near else None)


def _families(family: frozenset[str]) -> list[frozenset[str]]:
    if family == {"llama"}:
        return [frozenset({each}) for each in ("llama2", "llama3.1", "codellama", "llama")]
    if "distill" in family and not family & {"qwen", "llama"}:
        return [family | {"qwen"}, family | {"llama"}]
    return [family]


def _match(words: _Words) -> str | None:
    """The card of the size as written; without a size, if the family has one shape, or one with those active."""
    cards = _by_family().get(words.family, [])
    if words.size is not None:
        return next((name for name, of in cards if of.size == words.size and _active(words, of)), None)
    if words.active is not None:
        cards = [(name, of) for name, of in cards if of.active == words.active]
    shapes = {_bare(CARDS[name]) for name, _ in cards}
    return cards[0][0] if len(shapes) == 1 else None


def _near(words: _Words) -> list[tuple[str, float, int]]:
    """Cards that count nearly what is written, with how far they are and their place in the catalogue."""
    if words.size is None:
        return []
    cards = [(name, at) for at, (name, of) in enumerate(_by_family().get(words.family, [])) if _active(words, of)]
    found = [(name, abs(CARDS[name].parameters / words.size - 1), at) for name, at in cards]
    return [each for each in found if each[1] <= _TOLERANCE]


def _active(words: _Words, of: _Words) -> bool:
    return None in (words.active, of.active) or words.active == of.active


def _words(text: str) -> _Words:
    plain = text.lower().replace("dsv3", "deepseek-v3").replace("~", "")
    plain = _VERSIONED.sub(r"\1\2", plain)
    family: set[str] = set()
    size = active = None
    for word in re.split(r"[\s_-]+", plain):
        sized, chosen = _SIZE.fullmatch(word), _ACTIVE.fullmatch(word)
        if sized:
            size = float(sized[1]) * _UNITS[sized[2]]
        elif chosen:
            active = float(chosen[1]) * 1e9
        elif word and word not in SAME_SHAPE and not _DATED.fullmatch(word):
            family.add(word)
    return _Words(frozenset(family), size, active)


@lru_cache(maxsize=1)
def _ids() -> dict[str, str]:
    """Lower-case ids, with and without the owner."""
    found = {name.lower(): name for name in CARDS}
    for name in CARDS:
        found.setdefault(name.lower().rpartition("/")[2], name)
    return found


@lru_cache(maxsize=1)
def _by_family() -> dict[frozenset[str], list[tuple[str, _Words]]]:
    found: dict[frozenset[str], list[tuple[str, _Words]]] = {}
    for name in CARDS:
        words = _words(name.rpartition("/")[2])
        if words.family:
            found.setdefault(words.family, []).append((name, words))
    return found
