"""Episodes of the generator `vllm` over an engine that is made up: turns come back as they are done, in any order.

What a real engine does is asked in tests/backends/test_vllm.py; here it is who is asked what, and what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import LENGTH, STOP
from flowrl.backends.envs.turns import Heard
from flowrl.backends.generators.vllm import VllmGenerator
from flowrl.backends.text import Codec
from flowrl.graph.graph import Kind
from flowrl.graph.params import GenerateParams
from tests.backends.ranks import call_of, setup_of
from tests.backends.tiny import make_tiny


@dataclass
class Asked:
    name: str
    prompt: list[int]
    limit: int
    seed: int


class MadeUp:
    """Answers a request with its own length in `x`, the shortest prompt first, one a step."""

    def __init__(self, eos: int, letter: int) -> None:
        self.eos, self.letter = eos, letter
        self.asked: list[Asked] = []
        self.left: list[Asked] = []

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any, lora_request: Any) -> None:
        self.asked.append(Asked(name, prompt["prompt_token_ids"], sampling.max_tokens, sampling.seed))
        self.left.append(self.asked[-1])

    def collective_rpc(self, name: str, args: Sequence[object]) -> None:
        """What is said of log-probs."""

    def step(self) -> list[Any]:
        self.left.sort(key=lambda each: len(each.prompt))
        one = self.left.pop(0)
        tokens = ([self.letter] * (len(one.prompt) % 5) + [self.eos])[: one.limit]
        ended = tokens[-1] == self.eos
        log_probs = [{token: SimpleNamespace(logprob=-0.25)} for token in tokens]
        made = SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason="stop" if ended else "length")
        return [SimpleNamespace(request_id=one.name, outputs=[made], finished=True)]


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmGenerator:
    folder = make_tiny(tmp_path / "tiny")
    codec = Codec(folder)
    made = VllmGenerator.__new__(VllmGenerator)
    made._setup, made._codec, made._context, made._version = setup_of(Kind.GENERATOR, folder, "vllm"), codec, 60, 4
    made._engine = MadeUp(codec.eos_id, int(codec.encode_texts(["x"])[0][0]))
    made._broken, made._away, made._lora, made._turns = None, frozenset(), None, {}
    monkeypatch.setattr(
        made,
        "_sampling",
        lambda params, seed, limit, *, goes_on: SimpleNamespace(max_tokens=limit, seed=seed),
    )
    return made


def test_turns_are_handed_on_as_they_are_done(generator: VllmGenerator) -> None:
    call = call_of("generate", GenerateParams(max_response_tokens=40, max_turn_tokens=3), role="actor_infer")
    ids = np.asarray([0, 1, 2], dtype=np.int64)
    generator.begin(call, ids, None)
    said = generator.speak(
        [Heard(0, "abcdefg", first=True), Heard(1, "ab", first=True), Heard(2, "abcd", first=True)], 9
    )
    assert [(each.id, each.text) for each in said] == [(1, "xx")]  # the shortest is done first
    said = generator.speak([Heard(1, "go")], 9)  # seven tokens by now, as the first one has
    assert [(each.id, each.text) for each in said] == [(2, "xxx")]  # cut by the limit of a turn
    rest = [generator.speak([], 9) for _ in range(2)]
    assert sorted((each.id, each.text) for said in rest for each in said) == [(0, "xx"), (1, "xx")]
    row = generator.finish(Batch(ids, ids >> 16, {})).batch
    assert row is not None
    assert generator._codec.decode_all(row.ragged("tokens").rows()) == ["abcdefgxx", "abxxgoxx", "abcdxxx"]
    assert row.ragged("loss_mask").values.sum() == 3 + 6 + 3
    own = row.ragged("loss_mask").values.astype(bool)
    assert set(row.ragged("rollout_log_probs").values[own].tolist()) == {-0.25}
    assert not row.ragged("rollout_log_probs").values[~own].any()
    assert row.array("finish_reason").tolist() == [STOP] * 3
    asked = generator._engine.asked
    assert [each.name for each in asked] == ["0/0", "1/0", "2/0", "1/1"]
    assert len({each.seed for each in asked}) == 4
    assert asked[3].prompt == row.ragged("tokens").rows()[1][:-3].tolist()  # its own tokens as they came


def test_a_turn_that_fills_the_context_ends_the_episode(generator: VllmGenerator) -> None:
    call = call_of("generate", GenerateParams(max_response_tokens=40, max_context_tokens=6), role="actor_infer")
    generator.begin(call, np.asarray([0]), None)
    (said,) = generator.speak([Heard(0, "abcd", first=True)], 9)
    assert said.text == "xx"
    (cut,) = generator.speak([Heard(0, "more")], 9)
    assert cut.text is None
    row = generator.finish(Batch(np.asarray([0]), np.asarray([0]), {})).batch
    assert row is not None
    assert row.array("finish_reason").tolist() == [LENGTH]
