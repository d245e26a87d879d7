"""One training job of any framework, in neutral words: who runs which model where, in which cut, with which batches.

Readers (peers_*.py, reports.py) make Jobs of records, job_flows.py makes a FlowRL flow of a Job, bounds.py works out
what a Job needs at least. Must not know the planner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.facts.rules import PROMPT_TOKENS, mean_response

GIB = 2**30


class UnreadableError(Exception):
    """A record says too little, or what it says can't be said in a flow. The message is the reason that is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one copy of a model is cut; dp follows from the devices of its pool."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        """Of one replica. Experts are cut over the devices that are there already."""
        return self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One role: a model on the devices of a pool."""

    name: str
    kind: str
    """trainer, scorer, generator or reward."""
    backend: str
    model: str
    pool: str
    cut: Cut = field(default_factory=Cut)
    free: bool = False
    """Whether the cut is the planner's to choose."""
    update_tokens: int | None = None
    """Of one micro-batch of a replica, forward and backward."""
    forward_tokens: int | None = None
    """Of one micro-batch of a replica, forward alone."""
    filled_tokens: bool = False
    """Whether the tokens of a micro-batch follow from lengths that the record does not say: it is given in sequences,
    or by a budget that a whole minibatch does not fill on the average."""
    lora_rank: int | None = None
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys of the flow's `engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    gpu: str
    gpu_origin: str
    """`record`, or the rule that named the card."""
    nodes: int
    gpus_per_node: int
    pools: Mapping[str, int]
    """Devices of each pool; pools share none."""
    parties: tuple[Party, ...]
    prompt_tokens: int
    response_tokens: int
    context_tokens: int | None = None
    """Of prompt and response together, where that is less than their sum."""
    prompts: int = 128
    samples: int = 1
    updates: int = 1
    max_lag: int = 0
    empties_cache: bool = True
    """Whether its trainers give back what their allocators hold before an engine wakes, as the six frameworks do
    (torch.cuda.empty_cache: verl's aggressive_empty_cache, OpenRLHF's and slime's after each phase)."""
    share_of_free: bool = False
    """Whether an engine's share is one of the memory that is free when it starts, while other roles stay on its
    devices: SGLang's, and vLLM's before 0.7 (verl, docs/examples/config.rst)."""
    generation: str | None = None
    """Of vLLM, where the record says it (flowrl/machine/catalogue/memory.toml); `""`: today's."""
    filled: tuple[str, ...] = ()
    """Rules that stood in for facts."""

    @property
    def longest(self) -> int:
        both = self.prompt_tokens + self.response_tokens
        return both if self.context_tokens is None else min(both, self.context_tokens)

    def party(self, name: str) -> Party | None:
        return next((party for party in self.parties if party.name == name), None)

    def of_pool(self, pool: str) -> tuple[Party, ...]:
        return tuple(party for party in self.parties if party.pool == pool)


def packed_tokens(sequences: int, model: str, prompt: int, response: int) -> int:
    """Tokens that so many sequences have without padding: on the average (by the rule of mean lengths, rules.py), and
    never less than one longest sequence. A padded micro-batch holds `sequences * (prompt + response)`."""
    mean = min(PROMPT_TOKENS, prompt / 2) + mean_response(model, response)
    return max(prompt + response, round(sequences * mean))


def generation_of(text: str) -> str | None:
    """The generation of vLLM whose last version a text names: `vllm 0.8.3` is of 0.8; None if it names none."""
    versions = r"v?0\.(\d+)(?:[\d.]*\s*->\s*v?0\.(\d+))?"
    found = re.findall(rf"(?:vllm\W{{0,3}}|engine upgrade\W{{0,3}}){versions}", text, flags=re.IGNORECASE)
    if not found:
        return None
    minor = int(found[-1][1] or found[-1][0])
    return "v0" if minor < 8 else "0.8" if minor < 12 else "0.20" if minor <= 20 else ""


def whole(value: Any, default: int = 0) -> int:
    """A setting as an int: records hold numbers, texts of numbers, `null` and nothing."""
    try:
        return int(float(value))
    except (TypeError, ValueError):
        return default


def share(value: Any, default: float) -> float:
    """A setting as a float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def truth(value: Any, default: bool = False) -> bool:
    """A setting as a bool."""
    if value is None:
        return default
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes", "on")


def passes_of(rows: int, minibatch: int, prompts: int) -> int:
    """Optimizer updates of a step: rows over the minibatch, made a divisor of the prompts (a flow's minibatches are of
    whole groups)."""
    wanted = max(1, rows // minibatch) if minibatch > 0 else 1
    return next(count for count in range(min(wanted, prompts), 0, -1) if prompts % count == 0)
