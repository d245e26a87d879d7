"""What is drawn of a graph: every input of a join, filters on the way of the rows they choose, alike ops as one."""

from __future__ import annotations

from pathlib import Path

from flowrl.api.graphs import graphs_after
from flowrl.graph.graph import Graph
from flowrl.report.dataflow import dataflow
from flowrl.report.picture import Picture, folded, picture
from flowrl.spec import load, loads

EXAMPLES = Path(__file__).parents[2] / "examples"
REWARD = '{kind: reward, function: "flowrl:overlong", args: {max_tokens: 64, buffer_tokens: 8, penalty: 1.0}}'
HEAD = """flowrl: 1
name: x
models: {policy: {source: Qwen/Qwen2.5-0.5B-Instruct}}
data: {train: {source: a.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 64}}
"""
ROLES = """
  actor_train: {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-6}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 64}}
"""
TAIL = """
step: {prompts: 8, samples_per_prompt: 4, updates: 2}
"""


def graph_of(roles: str, edges: str, tail: str = TAIL) -> Graph:
    (graph,) = graphs_after(loads(f"{HEAD}roles:{ROLES}{roles}\nedges:\n{edges}{tail}"))
    return graph


def ensemble(size: int) -> Graph:
    names = [f"rm_{n}" for n in range(1, size + 1)]
    roles = "".join(f"  {n}: {REWARD}\n" for n in names)
    weights = ", ".join(f"{n}: 1.0" for n in names)
    roles += f"  reward: {{combine: {{{weights}}}}}\n  advantage: {{estimator: grpo}}"
    scores = ", ".join(f"{n}.score" for n in names)
    edges = f"""  - data.train -> actor_infer.generate
  - actor_infer.generate -> {scores}
  - {scores} -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
"""
    return graph_of(roles, edges)


def test_ensemble_is_drawn_whole_while_it_fits_and_as_one_beyond() -> None:
    assert sum("rm_" in line for line in dataflow(ensemble(5), 100) if "×" not in line) == 5
    lines = dataflow(ensemble(12), 100)
    (line,) = [line for line in lines if "rm_" in line and "+" not in line]
    assert "rm_1.score … rm_12.score, 12 alike" in line


def test_folding_keeps_apart_what_stands_elsewhere() -> None:
    """Of a_1 … a_4 the last feeds another op as well; b_1 … b_3 differ from them by name."""
    arcs = [("s", f"a_{n}") for n in range(1, 5)] + [(f"a_{n}", "t") for n in range(1, 5)] + [("a_4", "u")]
    arcs += [("s", f"b_{n}") for n in (1, 2, 3)] + [(f"b_{n}", "t") for n in (1, 2, 3)]
    nodes = tuple(dict.fromkeys(name for arc in arcs for name in arc))
    part = folded(Picture(nodes, tuple(sorted(arcs)), {name: (name,) for name in nodes}))
    assert {label for (label,) in part.labels.values()} == {
        "s",
        "t",
        "u",
        "a_1 … a_3, 3 alike",
        "a_4",
        "b_1 … b_3, 3 alike",
    }
    assert set(part.arcs) == {
        ("s", "a_1"),
        ("a_1", "t"),
        ("s", "a_4"),
        ("a_4", "t"),
        ("a_4", "u"),
        ("s", "b_1"),
        ("b_1", "t"),
    }


def test_joins_keep_all_inputs() -> None:
    """The join of four inputs (PPO) and of two after a fork of three (GRPO) that a peer drops edges of."""
    (ppo,) = graphs_after(load(EXAMPLES / "ppo.yaml"))
    into = {source for source, target in picture(ppo).arcs if target == "advantage.estimate"}
    assert into == {"reward.score", "reference.log_probs", "critic.values", "actor_train.log_probs"}
    (grpo,) = graphs_after(load(EXAMPLES / "flows" / "01-grpo-colocated.yaml"))
    into = {source for source, target in picture(grpo).arcs if target == "actor_train.update"}
    assert into == {"advantage.estimate", "reference.log_probs", "actor_train.log_probs"}


def test_filter_stands_before_those_who_read_its_rows() -> None:
    graph = graph_of(
        f"  reward: {REWARD}\n"
        "  informative: {kind: filter, rule: zero_spread, unit: group, by: reward.rewards}\n"
        "  advantage: {estimator: grpo}",
        """  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> informative.select
  - informative.select -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
""",
        "step: {prompts: 8, samples_per_prompt: 4, refill: {max_rounds: 3}}\n",
    )
    assert ("reward.score", "informative.select") in picture(graph).arcs
    assert ("informative.select", "advantage.estimate") in picture(graph).arcs
    told = " ".join(" ".join(dataflow(graph, 100)).split())
    assert "drops groups by zero_spread of reward.rewards; drawn again up to 3 times to 8 prompts" in told


def test_filter_says_which_samples_it_ranks_together() -> None:
    roles = (
        f"  reward: {REWARD}\n"
        "  best: {kind: filter, rule: threshold, unit: sample, by: reward.rewards, within: group, keep_top: 0.5}\n"
        "  advantage: {estimator: reinforce}"
    )
    edges = """  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> best.select
  - best.select -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
"""
    step = "step: {prompts: 8, samples_per_prompt: 4}\n"
    told = " ".join(" ".join(dataflow(graph_of(roles, edges, step), 100)).split())
    assert "keeps the top 0.5 of the samples of a prompt by threshold of reward.rewards" in told
    told = " ".join(" ".join(dataflow(graph_of(roles.replace("within: group, ", ""), edges, step), 100)).split())
    assert "keeps the top 0.5 of all samples by threshold of reward.rewards" in told
