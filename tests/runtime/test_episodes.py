"""Episodes at run time, inline and on the real backends: one policy on a lake, two that debate with weights apart.

What estimators are given is kept aside and looked at: rows, masks, turns, and whose they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind
from flowrl.runtime.launchers.choose import INLINE
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.rehearsal import RehearsalOptions, rehearse
from flowrl.runtime.rehearse import Small
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.runtime.tiny_flow import EXAMPLES

MODEL = """\
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, kv_heads: 2,
             ffn_size: 32, max_positions: 192}
    dtype: float32
"""
LAKE = f"""\
flowrl: 1
name: lake
models:
  policy:
{MODEL}
data:
  train: {{seeds: 64}}
  val: {{seeds: 2, order: sequential}}
roles:
  actor_train: {{model: policy, backend: fsdp, optimizer: {{name: adamw, lr: 1.0e-2}}, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: hf, generate: {{max_response_tokens: 90, max_turn_tokens: 3,
                max_context_tokens: 160}}, generate@val: {{samples_per_prompt: 1}}}}
  lake: {{kind: env, env: "flowrl:frozen_lake", args: {{rules: false}}, max_turns: 3, parallel: 5}}
  advantage: {{estimator: gigpo}}
edges:
  - data.train -> lake.reset
  - actor_infer.generate <-> lake.step
  - actor_infer.generate -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
  - {{edge: data.val -> lake.reset@val, every_steps: 2}}
  - actor_infer.generate@val <-> lake.step@val
step: {{prompts: 4, samples_per_prompt: 2, updates: 2}}
run: {{steps: 2, seed: 3}}
"""
DEBATE = f"""\
flowrl: 1
name: debate
models:
  policy:
{MODEL}
data:
  train: {{source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 16}}
roles:
  alice_train:
    {{kind: trainer, model: policy, backend: fsdp, optimizer: {{name: adamw, lr: 1.0e-2}}, update: {{loss: ppo}}}}
  alice_infer:
    {{kind: generator, model: policy, backend: hf, generate: {{max_response_tokens: 90, max_turn_tokens: 3}}}}
  bob_train:
    {{kind: trainer, model: policy, backend: fsdp, optimizer: {{name: adamw, lr: 1.0e-2}}, update: {{loss: ppo}}}}
  bob_infer:
    {{kind: generator, model: policy, backend: hf, generate: {{max_response_tokens: 90, max_turn_tokens: 2}}}}
  debate: {{kind: env, env: "talk.py:Debate", max_turns: 2}}
  alice_reward: {{kind: reward, function: "talk.py:solver"}}
  alice_adv: {{kind: estimator, estimator: grpo}}
  bob_adv: {{kind: estimator, estimator: grpo}}
edges:
  - data.train -> debate.reset
  - alice_infer.generate, bob_infer.generate <-> debate.step
  - alice_infer.generate -> alice_reward.score
  - alice_reward.score -> alice_adv.estimate
  - bob_infer.generate -> bob_adv.estimate
  - alice_adv.estimate -> alice_train.update
  - bob_adv.estimate -> bob_train.update
  - alice_train => alice_infer
  - bob_train => bob_infer
step: {{prompts: 2, samples_per_prompt: 2, updates: 1}}
run: {{steps: 2}}
"""
TALK = """\
class Debate:
    def reset(self, *, seed, options):
        self.turns = 0
        return options["prompt"] + options["answer"], {"agent": "alice_infer"}

    def step(self, action):
        self.turns += 1
        agent = ("alice_infer", "bob_infer")[self.turns % 2]
        reward = float(len(action))
        return f"{self.turns} {action}!", reward, self.turns == 3, False, {"agent": agent}


def solver(response, transcript, answer):
    return [float(sum(len(t["text"]) for t in turns)) + len(a) for turns, a in zip(transcript, answer)]
"""


class Watched:
    """An inline launcher's ranks, of which estimators leave behind what they were given."""

    def __init__(self) -> None:
        self.given: dict[str, list[tuple[Batch, Result]]] = {}

    def make(self, setup: RankSetup) -> Any:
        rank = make_rank(setup)
        if setup.role.kind is not Kind.ESTIMATOR:
            return rank
        seen = self.given.setdefault(setup.role.name, [])
        called = rank.call

        def call(call: Call, batch: Batch) -> Result:
            result = called(call, batch)
            seen.append((batch, result))
            return result

        rank.call = call
        return rank


def ran(folder: Path, flow: str) -> tuple[Watched, list[dict[str, Any]], list[dict[str, Any]]]:
    (folder / "flow.yaml").write_text(flow)
    watched = Watched()
    options = SessionOptions(
        progress=False, threads=1, make_launcher=lambda kind, threads: InlineLauncher(1, watched.make)
    )
    plan = compile_spec(load(folder / "flow.yaml"))
    result = run(plan, RunOptions(runs=folder / "runs", folder=folder, session=options))
    lines = [
        [json.loads(line) for line in (result.folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "samples.jsonl")
    ]
    return watched, lines[0], lines[1]


def runs_of(mask: np.ndarray) -> int:
    """Runs of true, counted one by one."""
    return sum(1 for place, own in enumerate(mask) if own and (place == 0 or not mask[place - 1]))


def test_a_lake_is_played_and_learnt_from(tmp_path: Path) -> None:
    watched, metrics, samples = ran(tmp_path, LAKE)
    for batch, result in watched.given["advantage"]:
        assert batch.ids.tolist() == [(p << 16) + s for p in np.unique(batch.prompt_ids).tolist() for s in (0, 1)]
        masks = batch.ragged("loss_mask").rows()
        turns = batch.ragged("turn_rewards")
        assert turns.lengths.tolist() == [runs_of(mask) for mask in masks]
        assert batch.ragged("state_key").lengths.tolist() == turns.lengths.tolist()
        assert all(1 <= count <= 3 for count in turns.lengths)
        rewards = [row.sum() for row in turns.rows()]
        assert batch.array("rewards").tolist() == rewards
        first = [row[0] for row in batch.ragged("state_key").rows()]
        assert first[0::2] == first[1::2]  # the samples of a prompt begin on one lake
        assert len(set(first)) > 1
        assert result.batch is not None
        for mask, advantages in zip(masks, result.batch.ragged("advantages").rows(), strict=True):
            assert not advantages[~mask.astype(bool)].any()
    steps = [line for line in metrics if "actor_train.loss" in line]
    assert len(steps) == 2
    assert all(1.0 <= line["lake.turns"] <= 3.0 for line in steps)
    assert all(0.0 <= line["lake.success"] <= 1.0 and "lake.rewards" in line for line in steps)
    assert any("lake.rewards@val" in line for line in metrics)
    assert samples[0]["prompt"].startswith("P")
    assert samples[0]["reward"] is not None


def test_two_policies_talk_and_each_trains_on_its_own_turns(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    rows = [{"question": question, "answer": answer} for question, answer in (("aa", "x"), ("b", "yy"), ("c", "z"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    watched, metrics, _ = ran(tmp_path, DEBATE)
    for name, turns, most in (("alice_adv", 2, 3), ("bob_adv", 1, 2)):
        for batch, _ in watched.given[name]:
            masks = batch.ragged("loss_mask").rows()
            assert [runs_of(mask) for mask in masks] == [turns] * 4
            assert all(mask.sum() <= most * turns for mask in masks)
    bob = watched.given["bob_adv"][0][0]
    alice = watched.given["alice_adv"][0][0]
    own_tokens = np.asarray([mask.sum() for mask in bob.ragged("loss_mask").rows()])
    assert (bob.array("rewards") <= own_tokens).all()  # a character a token, special ones aside
    assert not np.array_equal(alice.array("rewards"), bob.array("rewards"))
    assert all("alice_train.loss" in line and "bob_train.loss" in line for line in metrics if line["step"] <= 2)


def test_a_run_of_episodes_is_the_same_again(tmp_path: Path) -> None:
    """However many environments are alive, and in whatever order they are asked."""
    given = []
    for parallel in ("parallel: 5", "parallel: 100"):
        folder = tmp_path / parallel[-1]
        folder.mkdir()
        watched, _, _ = ran(folder, LAKE.replace("parallel: 5", parallel).replace("steps: 2", "steps: 1"))
        given.append(watched.given["advantage"][0][0])
    for name in ("turn_rewards", "state_key"):
        assert given[0].ragged(name).values.tolist() == given[1].ragged(name).values.tolist()


def test_the_job_with_sokoban_trains_small(tmp_path: Path) -> None:
    """examples/flows/06 as it is rehearsed, with a Sokoban in which any text is a move: GiGPO and StarPO's filter."""
    sets = ("roles.sokoban.env=flowrl:sokoban", "roles.sokoban.args={any_text: true}", "step.prompts=4")
    plan = compile_spec(load(EXAMPLES / "flows" / "06-sokoban-gigpo.yaml", sets))
    quiet = SessionOptions(progress=False, threads=1)
    options = RehearsalOptions(Small(steps=3), INLINE, tmp_path / "runs", session=quiet)
    done = rehearse(plan, options)
    assert all(len(each.steps) >= 1 for each in done.ran)
    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "actor_train.loss" in line]
    assert len(steps) == 3
    assert len({line["actor_train.loss"] for line in steps}) == 3
    assert len({line["sokoban.rewards"] for line in steps}) == 3
    assert all(line["starpo.kept"] == 0.25 for line in steps)
    assert all(line["sokoban.turns"] > 1 for line in steps)
