"""The lag that the plan tells is the lag of the emitted program, run by the executor that every clock drives."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.lag import path_lags
from flowrl.plan.plan import Pool, StageRun
from flowrl.program.program import ChannelKind, InstructionKind, Program
from flowrl.spec import load
from tests.compiler.emit.graphs import make_pool, one_pool, split_pools
from tests.compiler.flows import EXAMPLES, PPO, compiled

STEPS = 20
SYNC = "actor_train => actor_infer"
Key = tuple[str, str, str]


class Versions:
    """Follows the weight versions of a program by its instructions alone."""

    def __init__(self, program: Program) -> None:
        weights = [channel for channel in program.channels if channel.kind is ChannelKind.WEIGHTS]
        self.lying = {channel.id: deque([0] * channel.initial_tokens) for channel in weights}
        self.published: Counter[str] = Counter()
        self.after = {channel.edge: {0: 0} for channel in weights}
        self.held: dict[str, dict[str, int]] = {}
        self.made: dict[tuple[str, int], dict[str, int]] = {}
        self.trained: list[tuple[str, int]] = []

    def start(self, firing: Firing) -> None:
        instruction = firing.instruction
        if instruction.kind is InstructionKind.RECEIVE_WEIGHTS:
            taken = [self.lying[id].popleft() for id in instruction.receives if id in self.lying]
            if not firing.idle:
                self.held.setdefault(instruction.role, {})[instruction.edge or ""] = max(taken)
        if instruction.kind is InstructionKind.RUN and not firing.idle and instruction.op is not None:
            self.made[instruction.op, firing.step] = dict(self.held.get(instruction.role, {}))
            if instruction.op.endswith(".update") and instruction.firing == 0:
                self.trained.append((instruction.op, firing.step))

    def complete(self, firing: Firing) -> None:
        instruction = firing.instruction
        if instruction.kind is InstructionKind.SEND_WEIGHTS:
            edge = instruction.edge or ""
            self.published[edge] += not firing.idle
            self.after[edge][firing.step] = self.published[edge]
            for id in instruction.sends:
                if id in self.lying:
                    self.lying[id].append(self.published[edge])

    def lags(self, graph: Graph) -> dict[Key, int]:
        rows = [(e.source, e.target) for e in graph.edges if e.kind in (EdgeKind.DATA, EdgeKind.INTERACTION)]
        rows += [(e.target, e.source) for e in graph.edges if e.kind is EdgeKind.INTERACTION]
        below = {op.id: reachable([op.id], rows) for op in graph.ops if op.method == "generate"}
        most: Counter[Key] = Counter()
        for update, step in self.trained:
            for generate in (id for id, ops in below.items() if update in ops):
                for edge, version in self.made[generate, step].items():
                    key = (update, generate, edge)
                    most[key] = max(most[key], self.after[edge][step - 1] - version)
        return dict(most)


def _executed(graph: Graph, pools: tuple[Pool, ...], seed: int) -> dict[Key, int]:
    program = emit(graph, pools, StageRun(steps=STEPS))
    executor, versions, chance = Executor(program, STEPS), Versions(program), random.Random(seed)
    while not executor.done:
        for firing in executor.ready():
            executor.start(firing)
            versions.start(firing)
        done = chance.choice(executor.running())
        executor.complete(done)
        versions.complete(done)
    return versions.lags(graph)


def _told(graph: Graph) -> dict[Key, int]:
    return {(lag.update, lag.generate, lag.edge): lag.versions for lag in path_lags(graph)}


@given(
    lag=st.integers(0, 3),
    publish=st.sampled_from(
        ["", ", every_steps: 2", ", every_steps: 3", ", every_updates: 1", ", every_updates: 2", ", start_step: 4"]
    ),
    trains=st.sampled_from([None, "every_steps: 2", "every_steps: 3", "start_step: 3"]),
    pools=st.sampled_from([one_pool, split_pools]),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=50)
def test_ppo(lag: int, publish: str, trains: str | None, pools: Callable[[], tuple[Pool, ...]], seed: int) -> None:
    text = PPO.replace(
        "- actor_train => actor_infer", f"- {{edge: actor_train => actor_infer, max_lag: {lag}{publish}}}"
    )
    text = text.replace("updates: 2}", "updates: 4}")
    if trains is not None:
        edge = "advantage.estimate -> actor_train.update, critic.update"
        text = text.replace(f"- {edge}", f'- {{edge: "{edge}", {trains}}}')
    graph = compiled(text)
    told = _told(graph)
    assert set(told) == {(f"{role}.update", "actor_infer.generate", SYNC) for role in ("actor_train", "critic")}
    assert told == _executed(graph, pools(), seed)


@given(lags=st.tuples(st.integers(0, 3), st.integers(0, 3)), seed=st.integers(0, 1 << 20))
@settings(max_examples=25)
def test_a_debate_of_two_policies(lags: tuple[int, int], seed: int) -> None:
    """Each trains on episodes that the weights of both have made."""
    spec = load(str(EXAMPLES / "flows" / "07-debate-two-policies.yaml"))
    graph = lower_stage(spec, 0)
    names = ("alice", "bob")
    changed = {f"{name}_train => {name}_infer": 1 + lag for name, lag in zip(names, lags, strict=True)}
    graph = run_passes(_with_tokens(graph, changed))[0]
    pools = [make_pool(f"{name}_{part}", [f"{name}_{part}"]) for name in names for part in ("infer", "train")]
    host = make_pool(
        "host", ["debate", *(f"{n}_{part}" for n in names for part in ("reward", "adv"))], devices=0, slots=8
    )
    told = _told(graph)
    assert len(told) == 4
    assert {edge: versions for (_, _, edge), versions in told.items()} == {e: t - 1 for e, t in changed.items()}
    assert told == _executed(graph, (*pools, host), seed)


def _with_tokens(graph: Graph, tokens: dict[str, int]) -> Graph:
    return replace(graph, declared=tuple(replace(e, tokens=tokens.get(e.id, e.tokens)) for e in graph.declared))
