"""Causes of bug reports, in words → classes of ledger lines, and whether a plan's binding lines are of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

CLASSES: Mapping[str, str] = {
    "logits": r"logits",
    "engine": r"KV cache|engine|asleep|graphs",
    "load": r"uncut|whole|broadcast|loading|load",
    "sync": r"being sent|being received|gathered to send",
    "states": r"weights|master|optimizer|gradients|buckets|states|adapter",
    "activations": r"activations|layer work|layers|root group",
}
"""Class → names of ledger lines, the first that matches."""

WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"logit|vocab", ("logits",)),
    (r"load path|state dict.*load|broadcast load|load-time", ("load",)),
    (r"tokens per gpu|long answers|long(er)? (context|sequence)", ("activations", "logits")),
    (r"too big|too large|fragmentation|retained", ("states", "activations", "logits")),
    (r"resident|all roles|zero-?[123]|optimizer|fewer gpus|\bstates?\b|expert", ("states",)),
    (r"engine|util|kv|sleep|wake", ("engine", "states")),
    (r"layer|bucket", ("sync",)),
)
"""Words of a cause → classes; the first row that matches."""

OF_KIND: Mapping[str, tuple[str, ...]] = {
    "oom_update_actor": ("states", "activations", "logits"),
    "oom_log_prob": ("logits",),
    "oom_weight_sync": ("engine", "sync", "states"),
    "oom_init": ("load", "states"),
    "oom_rollout_start": ("engine", "states"),
}


def cause_classes(record: Mapping[str, Any]) -> frozenset[str]:
    """Classes of lines that a report blames; none if it knows no cause."""
    cause = str(record.get("cause") or "").lower()
    if not cause:
        return frozenset()
    found = next((classes for words, classes in WORDS if re.search(words, cause)), None)
    return frozenset(found or OF_KIND.get(str(record.get("kind")), ()))


def class_of(line: str) -> str | None:
    return next((name for name, words in CLASSES.items() if re.search(words, line)), None)


def names_cause(classes: Iterable[str], lines: Iterable[tuple[str, float]], over_gib: float) -> bool:
    """Whether the phase would fit without the lines of these classes."""
    blamed = set(classes)
    return sum(gib for name, gib in lines if class_of(name) in blamed) >= over_gib
