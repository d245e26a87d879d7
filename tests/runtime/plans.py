"""Small plans for the fakes: graphs as the passes leave them, programs from the real emitter."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from flowrl.compiler.emit.program import emit
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Op, Role, Schedule, Step
from flowrl.graph.params import DataParams, EstimateParams, GenerateParams, ScoreParams, UpdateParams
from flowrl.graph.signatures import FIELDS
from flowrl.graph.types import Field, Granularity, Unit
from flowrl.machine.cluster import Cluster, Device, NodeGroup
from flowrl.plan.plan import Digests, Estimate, Gate, Layout, Plan, Pool, RolePlacement, StagePlan, StageRun

ANSWER = Field(name="answer", unit=Unit.PROMPT, dtype="json")


def reads(source: str, *slots: str) -> tuple[Input, ...]:
    return tuple(
        Input(slot=s, field=s, source=source, unit=FIELDS[s].unit if s in FIELDS else Unit.SAMPLE, dtype="f32")
        for s in slots
    )


def make_op(id: str, granularity: Granularity, inputs: Sequence[Input], outputs: Sequence[str], **more: object) -> Op:
    stem, _, label = id.partition("@")
    role, _, method = stem.rpartition(".") if not stem.startswith("data.") else (stem, "", "rows")
    fields = tuple(ANSWER if name == "answer" else FIELDS[name] for name in outputs)
    return Op(
        id=id,
        role=role,
        method=method,
        label=label or None,
        granularity=granularity,
        inputs=tuple(inputs),
        outputs=fields,
        **more,  # type: ignore[arg-type]
    )


def data_op(name: str, prompts: int | None, every_steps: int = 1) -> Op:
    params = DataParams(source="fake", prompts=prompts)
    outputs = ("prompt", "response", "answer")
    return make_op(name, Granularity.PROMPT, (), outputs, params=params, every_steps=every_steps)


def generate_op(label: str, data: str, samples: int, every_steps: int = 1) -> Op:
    params = GenerateParams(max_response_tokens=5, samples_per_prompt=samples)
    outputs = ("tokens", "response", "weight_version")
    inputs = reads(data, "prompt")
    id = f"actor_infer.generate{label}"
    return make_op(id, Granularity.SAMPLE, inputs, outputs, params=params, every_steps=every_steps)


def score_op(label: str, data: str, every_steps: int = 1) -> Op:
    inputs = (*reads(f"actor_infer.generate{label}", "response"), *reads(data, "answer"))
    params = ScoreParams(flavour="function", function="fake.py:fake")
    id = f"reward.score{label}"
    return make_op(id, Granularity.SAMPLE, inputs, ("rewards",), params=params, every_steps=every_steps)


def edges_of(ops: Sequence[Op]) -> list[Edge]:
    """The data edges of the bound inputs."""
    edges: list[Edge] = []
    for op in ops:
        for source in dict.fromkeys(i.source for i in op.inputs if i.source is not None):
            slots = tuple(i.slot for i in op.inputs if i.source == source)
            id = f"{source} -> {op.id}"
            edges.append(
                Edge(
                    id=id,
                    kind=EdgeKind.DATA,
                    source=source,
                    target=op.id,
                    fields=slots,
                    origin=(id,),
                )
            )
    return edges


def weights_edge(tokens: int = 1, every_steps: int | None = None) -> Edge:
    id = "actor_train => actor_infer"
    return Edge(
        id=id,
        kind=EdgeKind.WEIGHTS,
        source="actor_train",
        target="actor_infer",
        origin=(id,),
        tokens=tokens,
        every_steps=every_steps,
    )


def grpo_graph(
    updates: int = 1, epochs: int = 1, max_lag: int = 0, val_every: int | None = 3, weights_every: int | None = None
) -> Graph:
    """data → generate → score → estimate → update, with validation on another data set."""
    step = Step(prompts=4, samples_per_prompt=3, updates=updates, epochs=epochs)
    params = UpdateParams(loss="ppo", updates=updates, epochs=epochs)
    ops = [
        data_op("data.train", step.prompts),
        generate_op("", "data.train", 1),
        score_op("", "data.train"),
        make_op(
            "advantage.estimate",
            Granularity.GROUP,
            (*reads("reward.score", "rewards"), *reads("actor_infer.generate", "tokens")),
            ("advantages",),
            params=EstimateParams(estimator="grpo"),
        ),
        make_op(
            "actor_train.update",
            Granularity.MINIBATCH,
            (*reads("actor_infer.generate", "tokens"), *reads("advantage.estimate", "advantages")),
            (),
            params=params,
            firings=updates * epochs,
        ),
    ]
    if val_every is not None:
        ops += [
            data_op("data.val", None, val_every),
            generate_op("@val", "data.val", 1, val_every),
            score_op("@val", "data.val", val_every),
        ]
    edges = [*edges_of(ops), weights_edge(1 + max_lag, weights_every)]
    return graph_of("grpo", ops, edges, step, max_lag)


def sft_graph() -> Graph:
    ops = [
        data_op("data.train", 4),
        make_op(
            "actor_train.update",
            Granularity.MINIBATCH,
            reads("data.train", "prompt", "response"),
            (),
            params=UpdateParams(loss="sft"),
        ),
    ]
    return graph_of("sft", ops, edges_of(ops), Step(prompts=4), 0)


KINDS = {"actor_train": Kind.TRAINER, "actor_infer": Kind.GENERATOR, "reward": Kind.REWARD, "advantage": Kind.ESTIMATOR}


def graph_of(name: str, ops: Sequence[Op], edges: Sequence[Edge], step: Step, max_lag: int) -> Graph:
    roles = tuple(
        Role(
            name=role,
            kind=KINDS.get(role, Kind.DATA),
            trainable=role == "actor_train",
        )
        for role in dict.fromkeys(op.role for op in ops)
    )
    return Graph(
        name=name,
        models=(),
        roles=roles,
        ops=tuple(ops),
        declared=tuple(edges),
        edges=tuple(edges),
        step=step,
        schedule=Schedule(max_lag=max_lag),
    )


def colocated(graph: Graph) -> tuple[Pool, ...]:
    """Trainer and generator take turns on one device."""
    roles = tuple(
        RolePlacement(role=role.name, layout=Layout(), offloaded=True)
        for role in graph.roles
        if role.name.startswith("actor")
    )
    return (Pool(name="all", devices=("node0/0",), device="cpu", roles=roles), _host(graph))


def split(graph: Graph, train_dp: int = 1) -> tuple[Pool, ...]:
    layouts = {"actor_train": Layout(dp=train_dp)}
    return (
        *(
            Pool(
                name=f"pool_{role.name}",
                devices=tuple(f"node0/{place}" for place in range(layouts.get(role.name, Layout()).devices)),
                device="cpu",
                roles=(RolePlacement(role=role.name, layout=layouts.get(role.name, Layout())),),
            )
            for role in graph.roles
            if role.name.startswith("actor")
        ),
        _host(graph),
    )


def _host(graph: Graph) -> Pool:
    names = [role.name for role in graph.roles if role.name in ("reward", "advantage")]
    roles = tuple(RolePlacement(role=name, layout=Layout()) for name in names)
    return Pool(name="host", devices=(), device="host", roles=roles, slots=4)


def stage_plan(
    graph: Graph, pools: tuple[Pool, ...] | None = None, run: StageRun | None = None, gate: Gate | None = None
) -> StagePlan:
    pools = pools or colocated(graph)
    run = run or StageRun(steps=7, loggers=(), samples_logged=2)
    return StagePlan(
        name=graph.name,
        graph=graph,
        pools=pools,
        edges=graph.edges,
        programs=emit(graph, pools, run),
        memory=(),
        estimate=Estimate(
            step_seconds=1.0, samples_per_second=1.0, tokens_per_second=1.0, busy={}, timeline=(), durations={}
        ),
        decisions=(),
        run=run,
        gate=gate,
    )


def make_plan(*stages: StagePlan) -> Plan:
    device = Device(
        name="cpu",
        memory_bytes=2**30,
        bf16_flops_per_second=1e12,
        memory_bytes_per_second=1e10,
        link_bytes_per_second=1e9,
        source="fake",
        is_cpu=True,
    )
    group = NodeGroup(
        name="node",
        device=device,
        nodes=1,
        devices_per_node=2,
        host_memory_bytes=2**33,
        network_bytes_per_second=1e9,
    )
    return Plan(
        name="fake",
        digests=Digests(flow="0", cluster="0", profile="0", code="0"),
        verdict="fits",
        cluster=Cluster(name="local", groups=(group,)),
        sources=(),
        run=stages[0].run,
        stages=stages,
    )


def starting_from(stage: StagePlan, start: str) -> StagePlan:
    return structs.replace(stage, starts_from={"policy": start})
