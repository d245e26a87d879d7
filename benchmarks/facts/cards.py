"""Loose names of models, as records write them → cards of the catalogue."""

from __future__ import annotations

import re
from functools import lru_cache

from flowrl.machine.models import CARDS


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower().rsplit("/", 1)[-1])


@lru_cache(maxsize=1)
def _by_plain_name() -> dict[str, str]:
    found: dict[str, str] = {}
    for card in CARDS:
        found.setdefault(_plain(card), card)
    return found


def card_of(name: str) -> str | None:
    """The hub id of a model's card; None if the catalogue has none of that name."""
    cards = _by_plain_name()
    bare = re.sub(r"\(.*?\)", "", name).strip()
    tries = [bare, f"deepseek-{bare}", re.sub(r"^(Qwen[\d.]+)-(\w+)-([\d.]+B)$", r"\1-\3-\2", bare)]
    tries += [re.sub(r"^llama(2?)-(7|13|70)b$", r"llama-2-\2b-hf", each, flags=re.IGNORECASE) for each in tries[:1]]
    tries += [re.sub(r"^llama-?3-?(70)b", r"meta-llama-3-\1b", bare, flags=re.IGNORECASE)]
    return next((cards[key] for each in tries if (key := _plain(each)) in cards), None)
