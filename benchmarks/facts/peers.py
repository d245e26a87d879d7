"""Configurations published as working → Jobs, by the reader of each framework. Takes records; knows no planner."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.facts import peers_areal, peers_nemo, peers_openrlhf, peers_roll, peers_slime, peers_verl
from benchmarks.facts.bounds import is_possible
from benchmarks.facts.jobs import Job, UnreadableError
from benchmarks.facts.records import DEVICE_WORDS
from flowrl.machine.devices import DEVICE_CARDS

Reader = Callable[[Mapping[str, Any], tuple[str, str]], Job]
READERS: Mapping[str, Reader] = {
    "verl": peers_verl.job,
    "nemorl": peers_nemo.job,
    "openrlhf": peers_openrlhf.job,
    "areal": peers_areal.job,
    "roll": peers_roll.job,
    "slime": peers_slime.job,
}
"""By the framework's name without punctuation."""
CARD_OF: Mapping[str, tuple[tuple[str, ...], str]] = {
    "areal": (("H800",), "AReaL's paper and blog: 64 nodes of 8 H800"),
    "nemorl": (("H100-80G",), "NeMo RL's performance page: H100-80G, where the recipe's name has no other card"),
    "openrlhf": (("A100-80G",), "OpenRLHF's README: settings are for 8 A100-80G"),
    "roll": (("H800",), "ROLL Flash and RollPacker, which run ROLL: H800"),
    "slime": (("H100-80G", "H200"), "slime's quick start: H100 and H200 are what its continuous integration runs on"),
    "verl": (("H100-80G",), "verl's performance pages: 80 GB cards, H100 and H800"),
}
"""Rule: the card of a configuration that names none is one that the documentation of its framework names, the first on
which the independent bound leaves room; a configuration that none of them can hold certainly ran on another card, which
nobody names, and is left out."""
MEMORY_CARDS: tuple[tuple[int, str], ...] = (
    (80, "H100-80G"),
    (96, "H20"),
    (141, "H200"),
    (140, "H200"),
    (40, "A100-40G"),
)
"""Rule: a card that is told by its memory alone."""


def framework_of(record: Mapping[str, Any]) -> str:
    return re.sub(r"[^a-z0-9]", "", str(record.get("framework", "")).lower())


def job_of(record: Mapping[str, Any]) -> Job:
    """Raises UnreadableError with the reason."""
    name = framework_of(record)
    reader = READERS.get(name)
    if reader is None:
        raise UnreadableError(f"no reader of {record.get('framework')}'s settings")
    if not isinstance(record.get("settings"), Mapping):
        raise UnreadableError("no settings")
    try:
        return _on_its_card(record, name, reader)
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
        raise UnreadableError(f"settings of a form that is not known: {type(error).__name__}: {error}") from None


def _on_its_card(record: Mapping[str, Any], framework: str, reader: Reader) -> Job:
    said = str(record.get("gpu") or "")
    card = card_in(said)
    if card is not None:
        return reader(record, (card, "record"))
    if framework not in CARD_OF or said:
        raise UnreadableError(f"`{said}` is no card of the catalogue" if said else "no GPU type")
    names, why = CARD_OF[framework]
    size = record.get("params_b")
    billions = float(size) if isinstance(size, int | float) else None
    for name in names:
        job = reader(record, (name, f"rule: {why}"))
        if is_possible(job, billions):
            return job
    told = "the card that its framework's documentation names" if len(names) == 1 else "none of the cards named"
    raise UnreadableError(f"card not known: {told} ({', '.join(names)}) can certainly not hold it")


def card_in(text: str) -> str | None:
    """The catalogue's card of a text such as `8 x H20-96GB` or `80GB (from file name)`."""
    for pattern, names in (*DEVICE_WORDS, (r"A40\b", ("A40",)), (r"3090", ("RTX3090",))):
        if re.search(pattern, text, flags=re.IGNORECASE):
            return next((name for name in names if name in DEVICE_CARDS), None)
    size = re.search(r"(\d+)\s*GB", text, flags=re.IGNORECASE)
    return next((name for gib, name in MEMORY_CARDS if size is not None and int(size[1]) == gib), None)
