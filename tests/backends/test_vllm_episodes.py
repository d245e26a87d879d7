"""Episodes on the real vLLM engine: what the generator `hf` says on the same weights, turn after turn, and no waiting.

The environments are real, too; what passes between them and the engine is written down on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import LENGTH, Call, RankSetup, Result
from flowrl.backends.envs.conversation import Here, Speaker, converse
from flowrl.backends.envs.environment import Environment
from flowrl.backends.envs.turns import Said
from flowrl.backends.generators.hf import HfGenerator
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import EnvParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from tests.backends.engines import LONG, call_of, laid_out, make_folders, rows_of, setup_of

pytest.importorskip("vllm")

from flowrl.backends.generators.vllm import VllmGenerator

pytestmark = pytest.mark.vllm

SLOW = """\
import time

class Slow:
    def reset(self, *, seed, options):
        self.seed, self.turns = seed, 0
        return f"state {seed}, ", {}

    def step(self, action):
        self.turns += 1
        if self.seed == 0 and self.turns == 1:
            time.sleep(3)
        return f"and {self.turns}", 1.0, self.turns == 4, False, {}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[VllmGenerator]:
    made = VllmGenerator(setup_of(folders["a-True"]))
    yield made
    made.close()


@pytest.fixture(scope="module")
def other(folders: dict[str, Path]) -> HfGenerator:
    role = Role(name="actor_infer", kind=Kind.GENERATOR, model="policy", backend="hf")
    return HfGenerator(setup_of(folders["a-True"], role=role))


class Noted(Environment):
    """Writes down which episodes had a turn, in the order in which they were told."""

    def __init__(self, folder: Path, **params: Any) -> None:
        known = EnvParams(**({"env": "flowrl:frozen_lake", "args": {"rules": False}, "max_turns": 3} | params))
        self.ops = tuple(
            Op(id=f"world.{name}", role="world", method=name, granularity=Granularity.SAMPLE, params=known)
            for name in ("reset", "step")
        )
        super().__init__(
            RankSetup(Role(name="world", kind=Kind.ENV), None, None, Layout(), folder=folder, ops=self.ops)
        )
        self.told: list[int] = []

    def tell(self, said: Mapping[str, Sequence[Said]]) -> None:
        self.told += [each.id for some in said.values() for each in some]
        super().tell(said)


def begun(env: Noted, speaker: Speaker, call: Call, prompts: int = 3) -> IntArray:
    ids = np.arange(prompts, dtype=np.int64)
    reset = dataclasses.replace(call, op=env.ops[0], samples_per_prompt=2)
    first = rows_of(env.call(reset, Batch(ids, ids, {"prompt_id": ids})))
    speaker.begin(call, first.ids, None)
    return first.ids


def played(speaker: Speaker, call: Call, folder: Path, **params: Any) -> Result:
    env = Noted(folder, **params)
    ids = begun(env, speaker, call)
    left = converse(env, Here({"me": speaker}), ("me",), dataclasses.replace(call, op=env.ops[1]), ids)
    env.close()
    return speaker.finish(left.rows["me"])


@pytest.mark.parametrize("limits", [{"max_turn_tokens": 5}, {"max_turn_tokens": 30, "max_response_tokens": 40}])
def test_greedy_episodes_are_those_of_hf(
    engine: VllmGenerator, other: HfGenerator, tmp_path: Path, limits: dict[str, int]
) -> None:
    call = call_of(**({"temperature": 0.0, "max_response_tokens": 80, "max_context_tokens": 96} | limits))
    mine, theirs = (rows_of(played(each, call, tmp_path)) for each in (engine, other))
    assert mine.ids.tolist() == theirs.ids.tolist() == [0, 1, 65536, 65537, 131072, 131073]
    for name in ("tokens", "loss_mask", "weight_version", "turn_rewards", "done", "state_key"):
        assert [row.tolist() for row in mine.ragged(name).rows()] == [
            row.tolist() for row in theirs.ragged(name).rows()
        ]
    assert mine.objects("response") == theirs.objects("response")
    assert mine.array("finish_reason").tolist() == theirs.array("finish_reason").tolist()
    assert (LENGTH in mine.array("finish_reason")) == ("max_response_tokens" in limits)
    log_probs = [each.ragged("rollout_log_probs").values for each in (mine, theirs)]
    np.testing.assert_allclose(log_probs[0], log_probs[1], atol=1e-4)
    assert mine.ragged("turn_rewards").lengths.max() > 1
    for mask in mine.ragged("loss_mask").rows():
        turns = np.diff(np.concatenate([[0], mask.astype(int), [0]]))
        spoken = np.flatnonzero(turns == -1) - np.flatnonzero(turns == 1)
        assert 1 <= spoken.max() <= limits["max_turn_tokens"]
        assert mask[np.argmax(mask) :].size <= limits.get("max_response_tokens", 80)


def test_samples_of_episodes_depend_on_their_seeds_alone(engine: VllmGenerator, tmp_path: Path) -> None:
    call = call_of(temperature=1.0, max_response_tokens=80, max_turn_tokens=6)
    whole, few = (rows_of(played(engine, call, tmp_path, parallel=parallel)) for parallel in (None, 1))
    assert [r.tolist() for r in whole.ragged("tokens").rows()] == [r.tolist() for r in few.ragged("tokens").rows()]
    assert len({row.tobytes() for row in whole.ragged("tokens").rows()}) == 6


def test_an_episode_goes_on_while_another_waits_for_its_environment(engine: VllmGenerator, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    env = Noted(tmp_path, env="slow.py:Slow", args={}, parallel=6, max_turns=9)
    call = call_of(max_response_tokens=80, max_turn_tokens=4)
    ids = begun(env, engine, call)
    left = converse(env, Here({"me": engine}), ("me",), dataclasses.replace(call, op=env.ops[1]), ids)
    env.close()
    assert sorted(env.told) == sorted(ids.tolist() * 4)
    assert set(env.told[-6:]) == {0, 1}  # prompt 0 waits for its first answer; the others have had all their turns
    assert engine.finish(left.rows["me"]).metrics["truncated"] == (0.0, 6.0)


def test_a_turn_finds_the_earlier_ones_in_the_prefix_cache_until_weights_change(
    engine: VllmGenerator, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached: dict[str, int] = {}
    step = engine._engine.step

    def noted() -> Any:
        outputs = step()
        cached.update({each.request_id: each.num_cached_tokens for each in outputs if each.finished})
        return outputs

    monkeypatch.setattr(engine._engine, "step", noted)
    call = call_of(temperature=0.0, max_response_tokens=80, max_turn_tokens=10)
    engine.read_weights(*laid_out(folders["a-True"]), 1)
    first = rows_of(played(engine, call, tmp_path))
    assert cached["0/0"] == 0
    assert cached["0/2"] >= 32  # a block of the cache
    engine.read_weights(*laid_out(folders["b-True"]), 2)
    second = rows_of(played(engine, call, tmp_path))
    assert cached["0/0"] == 0
    assert second.ragged("weight_version").values.tolist() == [2] * second.ragged("tokens").lengths.sum()
    assert [r.tolist() for r in first.ragged("tokens").rows()] != [r.tolist() for r in second.ragged("tokens").rows()]


def test_what_was_left_half_done_is_begun_again(engine: VllmGenerator, tmp_path: Path) -> None:
    """A partner that dies ends the conversation in its midst; the same call is then made once more."""
    call = call_of(temperature=1.0, max_response_tokens=80, max_turn_tokens=6)
    whole = rows_of(played(engine, call, tmp_path))
    env = Noted(tmp_path)
    ids = begun(env, engine, call)
    step = dataclasses.replace(call, op=env.ops[1])
    env.enter(step, ids, ("me",))
    env.tell({"me": engine.speak(env.heard(wait=True)["me"], 9)})
    engine.speak(env.heard(wait=True).get("me", []), 1)
    engine.begin(call, ids, None)
    left = converse(env, Here({"me": engine}), ("me",), step, ids)
    env.close()
    again = rows_of(engine.finish(left.rows["me"]))
    assert [r.tolist() for r in again.ragged("tokens").rows()] == [r.tolist() for r in whole.ragged("tokens").rows()]


def test_more_prompts_than_fit_into_a_step_of_the_engine(engine: VllmGenerator) -> None:
    """None is read in pieces, for which vLLM would put back random streams as torch cannot on a CPU."""
    config = engine._engine.vllm_config.scheduler_config
    call = call_of(max_response_tokens=2)
    many = 1 + config.max_num_batched_tokens // len(LONG)
    ids = np.arange(many, dtype=np.int64)
    prompts = tuple(f"{id:04}" + LONG for id in ids.tolist())  # no block is in the cache
    rows = rows_of(engine.call(call, Batch(ids, ids, {"prompt": prompts})))
    assert len(rows) == 2 * many
