"""Requests of one call of a vLLM engine: what each came back with, and which of them have been handed on.

Knows no engine: takes its outputs, gives samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.backends.batch import SAMPLE_ID_BITS
from flowrl.backends.contract import LENGTH, STOP


@dataclass(slots=True)
class Sample:
    """One request, and what came back."""

    id: int
    prompt: list[int]
    response: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    finish_reason: int = STOP

    @property
    def ended(self) -> bool:
        """Whether it came to an end of its own, not to its limit."""
        return self.finish_reason == STOP

    def take(self, output: Any, stopped: bool) -> None:
        """`output`: vLLM's CompletionOutput with the log-prob of each sampled token."""
        self.response = list(output.token_ids)
        chosen = zip(self.response, output.logprobs, strict=True)
        self.log_probs = [entry[token].logprob for token, entry in chosen]
        self.finish_reason = LENGTH if output.finish_reason == "length" and not stopped else STOP


@dataclass(slots=True)
class Live:
    """A call that the engine is at work on."""

    samples: Sequence[Sample]
    stop: Sequence[str]
    waiting: dict[str, Sample]
    """By request, those that are not done."""
    done: list[Sample] = field(default_factory=list["Sample"])
    """In the order in which they were."""
    given: set[int] = field(default_factory=set[int])

    def has(self, number: int, parts: int, by_prompt: bool) -> bool:
        """Whether as many are done as so many parts have."""
        done, all_ = (self._prompts(self.done), self._prompts(self.samples)) if by_prompt else (self.done, self.samples)
        return len(done) >= len(all_) * number // parts

    def take(self, number: int, parts: int, by_prompt: bool) -> list[Sample]:
        """Those that are done and have not been given, as many as the parts have; in the order of their ids."""
        if by_prompt:
            prompts = set(self._prompts(self.done)[: len(self._prompts(self.samples)) * number // parts])
            chosen = [s for s in self.done if s.id >> SAMPLE_ID_BITS in prompts]
        else:
            chosen = self.done[: len(self.samples) * number // parts]
        fresh = sorted((s for s in chosen if s.id not in self.given), key=lambda s: s.id)
        self.given.update(s.id for s in fresh)
        return fresh

    def _prompts(self, samples: Sequence[Sample]) -> list[int]:
        """Prompts of which every sample is among `samples`, by when the last of them came."""
        whole = Counter(s.id >> SAMPLE_ID_BITS for s in self.samples)
        seen: Counter[int] = Counter()
        found: list[int] = []
        for sample in samples:
            prompt = sample.id >> SAMPLE_ID_BITS
            seen[prompt] += 1
            found += [prompt] if seen[prompt] == whole[prompt] else []
        return found
