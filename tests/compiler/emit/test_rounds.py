"""What a program does for the rounds of refill: nothing else comes between them, and a further one repeats what it
needs and no more."""

from __future__ import annotations

import pytest

from flowrl.compiler.emit.program import emit
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.graph.graph import Graph
from flowrl.graph.rows import rows_of
from flowrl.plan.plan import Layout, Pool, RolePlacement, StageRun
from flowrl.program.check import check
from flowrl.program.program import Program
from flowrl.program.rounds import last_ops, round_program
from tests.compiler.flows import GRPO, compiled

ROUND = {"data.train", "actor_infer.generate", "reward.score", "informative.select"}
FLOW = (
    GRPO.replace(
        "  - reward.score -> advantage.estimate\n",
        "  - reward.score -> informative.select\n  - informative.select -> advantage.estimate\n",
    )
    .replace("edges:", "  informative: {kind: filter, rule: zero_spread, by: reward.rewards}\nedges:")
    .replace("prompts: 8, samples_per_prompt: 4", "prompts: 8, samples_per_prompt: 4, refill: {max_rounds: 3}")
)


def _graph(text: str = FLOW) -> Graph:
    return compiled(text)


def _pools(graph: Graph, *parts: tuple[str, ...], leave: bool = False) -> tuple[Pool, ...]:
    def entries(roles: tuple[str, ...]) -> tuple[RolePlacement, ...]:
        return tuple(RolePlacement(role=role, layout=Layout(), offloaded=leave) for role in roles)

    placed = {role for part in parts for role in part}
    host = tuple(role.name for role in graph.roles if role.name not in placed)
    own = [Pool(name=f"p{n}", devices=(f"{n}",), device="", roles=entries(part)) for n, part in enumerate(parts)]
    rest = tuple(RolePlacement(role=role, layout=Layout()) for role in host)
    return (*own, Pool(name="host", devices=(), device="host", roles=rest, slots=4))


def _program(graph: Graph, *parts: tuple[str, ...], leave: bool = False) -> Program:
    return emit(graph, _pools(graph, *parts, leave=leave), StageRun(steps=4))


def _lane(program: Program, pool: str) -> list[str]:
    return [i.id for stream in program.streams if stream.pool == pool for i in stream.instructions]


def test_a_round_is_what_the_filter_decides_by() -> None:
    graph = _graph()
    assert rows_of(graph).round == ROUND
    assert last_ops(graph) == ("informative.select",)
    assert rows_of(_graph(FLOW.replace(", refill: {max_rounds: 3}", ""))).round == frozenset()


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("parts", [(("actor_train", "actor_infer"),), (("actor_train",), ("actor_infer",))])
def test_nothing_passes_a_round(parts: tuple[tuple[str, ...], ...], lag: int) -> None:
    """Play four steps: from a step's data to the end of its filter the data set, the engine and the reward do nothing
    of a later step, and no newer weights come in."""
    program = _program(_graph(f"{FLOW}schedule: {{max_lag: {lag}}}\n"), *parts, leave=True)
    executor, under_way, running = Executor(program, 4), 0, list[Firing]()
    while not executor.done:
        for firing in executor.ready():
            executor.start(firing)
            running.append(firing)
            if firing.instruction.op == "data.train":
                assert not under_way
                under_way = firing.step
            if firing.instruction.role in ("data.train", "actor_infer", "reward"):
                assert not under_way or firing.step <= under_way
        done = running.pop(0)
        executor.complete(done)
        under_way = 0 if done.instruction.op == "informative.select" else under_way


def test_a_further_round_has_its_ops_alone() -> None:
    graph = _graph()
    again = round_program(_program(graph, ("actor_train", "actor_infer"), leave=True), ROUND)
    check(again)
    assert {i.op for i in again.instructions} == ROUND
    assert len(again.instructions) == len(ROUND)


def test_roles_of_a_round_that_take_turns_are_brought_back() -> None:
    graph = _graph()
    program = _program(graph, ("actor_train", "actor_infer", "reward"), leave=True)
    again = round_program(program, ROUND)
    assert _lane(again, "p0") == [
        "offload reward",
        "load actor_infer",
        "run actor_infer.generate",
        "offload actor_infer",
        "load reward",
        "run reward.score",
    ]
    executor = Executor(again, 1)
    ran = 0
    while not executor.done:
        for firing in executor.ready():
            executor.start(firing)
            executor.complete(firing)
            ran += 1
    assert ran == len(again.instructions)
    whole = _lane(program, "p0")
    assert whole.index("run actor_train.update") > whole.index("run reward.score")


def test_validation_waits_behind_the_rounds() -> None:
    """An engine's validation call stands behind its round in the lane, whatever the order of the flow."""
    text = FLOW.replace(
        "edges:\n",
        "edges:\n  - {edge: data.val -> actor_infer.generate@val, every_steps: 2}\n"
        "  - actor_infer.generate@val -> reward.score@val\n",
    ).replace("data: {", "data: {val: {source: rows.jsonl, prompt: question, keep: [entry]}, ")
    program = _program(_graph(text), ("actor_train",), ("actor_infer", "reward"), leave=True)
    lane = [id for id in _lane(program, "p1") if id.startswith("run")]
    assert lane[:2] == ["run actor_infer.generate", "run reward.score"]
    assert set(lane[2:]) == {"run actor_infer.generate@val", "run reward.score@val"}
