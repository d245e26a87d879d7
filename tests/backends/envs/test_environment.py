"""The rank of an environment role: resets, episodes in flight, limits of time, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, RankSetup
from flowrl.backends.envs.environment import Environment
from flowrl.backends.envs.turns import Heard, Left, Said
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import EnvParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from tests.backends.placed import REWARD, placed
from tests.conftest import Told

COUNTING = """\
import os, time

class Counting:
    alive = 0

    def __init__(self, end=3):
        self.end = end

    def reset(self, *, seed, options):
        self.count, self.name = 0, f"{options['question']}/{seed}"
        if options["question"] == "bad":
            raise RuntimeError("no such level")
        return self.name, {}

    def step(self, action):
        self.count += 1
        if action == "hang":
            time.sleep(60)
        if action == "die":
            os._exit(3)
        if action == "raise":
            raise ValueError("odd")
        done = self.count >= self.end
        return f"{self.name}:{self.count}", float(len(action)), done, False, {}
"""


def rank(folder: Path, on_error: str = "abort", **params: object) -> tuple[Environment, Op, Op]:
    (folder / "counting.py").write_text(COUNTING)
    known = EnvParams(**({"env": "counting.py:Counting", "max_turns": 9} | params))  # type: ignore[arg-type]
    ops = tuple(
        Op(id=f"world.{name}", role="world", method=name, granularity=Granularity.SAMPLE, params=known)
        for name in ("reset", "step")
    )
    role = Role(name="world", kind=Kind.ENV, on_error=on_error)
    return Environment(RankSetup(role, None, None, Layout(), folder=folder, ops=ops)), *ops


def prompts(*names: str) -> Batch:
    ids = np.arange(len(names), dtype=np.int64)
    return Batch(ids, ids, {"prompt_id": ids + 100, "question": names})


def played(env: Environment, reset: Op, step: Op, rows: Batch, words: Sequence[str] = ("a", "bb", "ccc")) -> Left:
    """Two samples of each prompt; each says `words` in turn."""
    made = env.call(Call(reset, 1, 0, samples_per_prompt=2), rows).batch
    assert made is not None
    return spoken(env, step, made.ids, words)


def spoken(env: Environment, step: Op, ids: IntArray, words: Sequence[str] = ("a", "bb", "ccc")) -> Left:
    env.enter(Call(step, 1, 0), ids, ("me",))
    turns: dict[int, int] = dict.fromkeys(ids.tolist(), -1)
    while heard := whole(env):
        turns |= {each.id: turns[each.id] + 1 for each in heard}
        env.tell({"me": [Said(each.id, words[turns[each.id]]) for each in heard]})
    return env.leave()


def whole(env: Environment) -> list[Heard]:
    """What there is to answer when every environment has said what it has to say."""
    found: list[Heard] = []
    while env.busy:
        found += env.heard(wait=True).get("me", [])
    return sorted(found, key=lambda each: each.id)


def answered(env: Environment, *said: Said) -> list[Heard]:
    env.tell({"me": said})
    return whole(env)


def test_a_reset_gives_every_sample_of_a_prompt_the_same_start(tmp_path: Path) -> None:
    env, reset, _ = rank(tmp_path)
    made = env.call(Call(reset, 1, 0, samples_per_prompt=2), prompts("x", "y")).batch
    env.close()
    assert made is not None
    assert made.ids.tolist() == [0, 1, 65536, 65537]
    assert made.prompt_ids.tolist() == [0, 0, 1, 1]
    assert made.objects("prompt") == ("x/100", "x/100", "y/101", "y/101")


@pytest.mark.parametrize("parallel", [None, 1, 3])
def test_episodes_are_the_same_however_many_are_alive(tmp_path: Path, parallel: int | None) -> None:
    env, reset, step = rank(tmp_path, parallel=parallel)
    left = played(env, reset, step, prompts("x", "y"))
    env.close()
    rows = left.rows["me"]
    assert rows.ids.tolist() == [0, 1, 65536, 65537]
    assert rows.ragged("turn_rewards").values.tolist() == [1.0, 2.0, 3.0] * 4
    assert rows.array("rewards").tolist() == [6.0] * 4
    assert left.metrics["turns"] == (3.0, 4.0)
    assert left.metrics["cut"] == (0.0, 4.0)


def test_no_more_are_in_flight_than_parallel_says(tmp_path: Path) -> None:
    env, reset, step = rank(tmp_path, parallel=3)
    made = env.call(Call(reset, 1, 0, samples_per_prompt=4), prompts("x", "y")).batch
    assert made is not None
    env.enter(Call(step, 1, 0), made.ids, ("me",))
    assert [each.id for each in whole(env)] == [0, 1, 2]
    following = answered(env, Said(0, None), Said(1, "a"))  # the first is cut off: another one begins
    assert [(each.id, each.first) for each in following] == [(1, False), (3, True)]
    env.close()


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_step_may_be_played_again(tmp_path: Path, parallel: int) -> None:
    """From its midst, with a turn under way, and after its end: what counts is what was said the last time."""
    env, reset, step = rank(tmp_path, parallel=parallel)
    made = env.call(Call(reset, 1, 0, samples_per_prompt=2), prompts("x", "y")).batch
    assert made is not None
    env.enter(Call(step, 1, 0), made.ids, ("me",))
    for each in whole(env):
        assert answered(env, Said(each.id, "unheard"))
    env.tell({"me": [Said(0, "under way")]})
    lefts = [spoken(env, step, made.ids) for _ in range(2)]
    env.close()
    for left in lefts:
        assert left.rows["me"].ragged("turn_rewards").values.tolist() == [1.0, 2.0, 3.0] * 4
        assert [turns[0]["observation"] for turns in left.rows["me"].objects("transcript")] == ["x/100"] * 2 + [
            "y/101"
        ] * 2


def test_two_calls_keep_their_episodes_apart(tmp_path: Path) -> None:
    """A held-out call is reset before the other one is played: its samples have the same ids."""
    (tmp_path / "counting.py").write_text(COUNTING)
    known = EnvParams(env="counting.py:Counting", max_turns=9)
    ops = {
        (name, label): Op(
            id=f"world.{name}", role="world", method=name, label=label, granularity=Granularity.SAMPLE, params=known
        )
        for name in ("reset", "step")
        for label in (None, "val")
    }
    role = Role(name="world", kind=Kind.ENV)
    env = Environment(RankSetup(role, None, None, Layout(), folder=tmp_path, ops=tuple(ops.values())))
    for label, name in ((None, "train"), ("val", "held out")):
        made = env.call(Call(ops["reset", label], 1, 0, samples_per_prompt=2), prompts(name)).batch
        assert made is not None
        assert made.ids.tolist() == [0, 1]
    for label, name in ((None, "train"), ("val", "held out")):
        env.enter(Call(ops["step", label], 1, 0), np.asarray([0, 1]), ("me",))
        assert [each.observation for each in whole(env)] == [f"{name}/100"] * 2
        following = answered(env, Said(0, "a"), Said(1, "a"))
        assert [each.observation for each in following] == [f"{name}/100:1"] * 2
        assert not answered(env, Said(0, None), Said(1, None))
        assert env.leave().rows["me"].array("rewards").tolist() == [1.0, 1.0]
    env.close()


def test_a_limit_of_turns_cuts_an_episode(tmp_path: Path) -> None:
    env, reset, step = rank(tmp_path, max_turns=2)
    left = played(env, reset, step, prompts("x"))
    env.close()
    assert left.rows["me"].ragged("done").values.tolist() == [False] * 4
    assert left.metrics["cut"] == (1.0, 2.0)


@pytest.mark.parametrize("word", ["hang", "die", "raise"])
def test_the_episode_that_fails_ends_and_the_others_go_on(tmp_path: Path, word: str) -> None:
    env, reset, step = rank(tmp_path, on_error="default", timeout_seconds=2.0)
    made = env.call(Call(reset, 1, 0, samples_per_prompt=3), prompts("x")).batch
    assert made is not None
    env.enter(Call(step, 1, 0), made.ids, ("me",))
    whole(env)
    answered(env, Said(0, "a"), Said(1, "a"), Said(2, "a"))
    following = answered(env, Said(0, "bb"), Said(1, word), Said(2, "bb"))
    assert [(each.id, each.observation) for each in following] == [(0, "x/100:2"), (2, "x/100:2")]
    assert not answered(env, Said(0, "ccc"), Said(2, "ccc"))
    left = env.leave()
    env.close()
    assert left.rows["me"].ragged("turn_rewards").lengths.tolist() == [3, 1, 3]
    assert left.rows["me"].array("rewards").tolist() == [6.0, 1.0, 6.0]
    assert left.metrics["failed"] == (pytest.approx(1 / 3), 3.0)
    assert ("restarts" in left.metrics) == (word != "raise")


def test_a_group_is_left_out_where_the_role_says_drop(tmp_path: Path) -> None:
    env, reset, step = rank(tmp_path, on_error="drop")
    made = env.call(Call(reset, 1, 0, samples_per_prompt=2), prompts("x", "y", "bad")).batch
    assert made is not None
    assert made.prompt_ids.tolist() == [0, 0, 1, 1]
    env.enter(Call(step, 1, 0), made.ids, ("me",))
    whole(env)
    answered(env, Said(0, "raise"), *(Said(id, None) for id in (1, 65536, 65537)))
    assert env.leave().rows["me"].prompt_ids.tolist() == [1, 1]
    env.close()


def test_an_episode_without_a_reset_is_asked_its_own_prompt(tmp_path: Path) -> None:
    env, _, step = rank(tmp_path, env="flowrl:frozen_lake")
    alone = Environment(RankSetup(Role(name="w", kind=Kind.ENV), None, None, Layout(), folder=tmp_path, ops=(step,)))
    alone.enter(Call(step, 1, 0), np.asarray([65536]), ("me",))
    assert whole(alone) == [Heard(65536, None, first=True)]
    env.close()
    alone.close()


WORLD = {
    REWARD: 'world: {kind: env, env: "counting.py:Counting", max_turns: 4}',
    "data.train -> actor_infer.generate": "data.train -> world.reset",
    "actor_infer.generate -> reward.score, actor_train.log_probs": "actor_infer.generate <-> world.step",
    "reward.score, actor_train.log_probs -> advantage.estimate": "actor_infer.generate -> advantage.estimate",
}


def at_the_flow(folder: Path, **edits: str) -> Environment:
    (folder / "counting.py").write_text(COUNTING)
    changes = dict(WORLD)
    for old, new in edits.items():
        key = next(iter(changes))
        changes[key] = changes[key].replace(old, new)
    graph = placed(folder, changes)
    ops = tuple(op for op in graph.ops if op.role == "world")
    return Environment(RankSetup(graph.role("world"), None, None, Layout(), folder=folder, ops=ops))


def test_a_failure_is_told_at_its_place(tmp_path: Path, told: Told) -> None:
    env = at_the_flow(tmp_path)
    reset = next(op for op in env._setup.ops if op.method == "reset")
    with pytest.raises(FlowError) as caught:
        env.call(Call(reset, 1, 0, samples_per_prompt=2), prompts("x", "bad"))
    env.close()
    told(caught.value, "FR0862")


@pytest.mark.parametrize(
    ("env", "code", "name"),
    [("gem:game:Chess-v0", "FR0860", ""), ("flowrl:sokobn", "FR0861", ""), ("atari:Pong", "FR0861", "library")],
)
def test_environments_that_are_not_there(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, env: str, code: str, name: str
) -> None:
    monkeypatch.setattr("flowrl.backends.envs.names.find_spec", lambda package: None)
    monkeypatch.setattr("flowrl.backends.envs.slots.EnvProcess", lambda furnish, limits: _here(furnish))
    with pytest.raises(FlowError) as caught:
        at_the_flow(tmp_path, **{"counting.py:Counting": env})
    told(caught.value, code, name)


def _here(furnish: object) -> object:
    from flowrl.backends.envs.process import EnvHere

    return EnvHere(furnish)  # type: ignore[arg-type]
