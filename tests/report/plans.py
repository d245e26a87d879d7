"""Plans made by hand, with round numbers: two nodes of GPUs, one CPU in two stages, and one that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import Diagnostic, Help, Severity
from flowrl.execution.estimate import estimate
from flowrl.graph.graph import Graph, Removal, Role
from flowrl.machine.cluster import Cluster, Device, NodeGroup
from flowrl.plan.plan import (
    Decision,
    Digests,
    Layout,
    LedgerLine,
    Memory,
    Plan,
    Pool,
    Rejected,
    RolePlacement,
    Source,
    StagePlan,
    StageRun,
)
from tests.compiler.emit.graphs import GPU_ROLES, data, make_graph, make_op, make_ppo, make_sft, weights

GIB = 1 << 30
BACKENDS = {"actor_train": "fsdp", "actor_infer": "vllm", "critic": "fsdp", "reference": "fsdp"}


def h100_cluster() -> Cluster:
    device = Device(
        name="H100-80G",
        memory_bytes=80 * GIB,
        bf16_flops_per_second=989e12,
        memory_bytes_per_second=3.35e12,
        link_bytes_per_second=450e9,
        source="by hand",
    )
    return Cluster(name="16xH100-80G", groups=(_group(device, 2, 8),))


def cpu_cluster() -> Cluster:
    device = Device(
        name="cpu",
        memory_bytes=8 * GIB,
        bf16_flops_per_second=1e11,
        memory_bytes_per_second=2e10,
        link_bytes_per_second=1e10,
        source="by hand",
        is_cpu=True,
    )
    return Cluster(name="local", groups=(_group(device, 1, 1),))


def _group(device: Device, nodes: int, each: int) -> NodeGroup:
    return NodeGroup(
        name="all",
        device=device,
        nodes=nodes,
        devices_per_node=each,
        host_memory_bytes=64 * GIB,
        network_bytes_per_second=5e10,
    )


def colocated() -> Plan:
    """PPO on 16 GPUs, all roles on all of them."""
    devices = tuple(f"node{node}/{place}" for node in range(2) for place in range(8))
    roles = (
        RolePlacement(role="actor_train", layout=Layout(dp=16)),
        RolePlacement(role="actor_infer", layout=Layout(dp=8, tp=2), offloaded=True),
        RolePlacement(role="critic", layout=Layout(dp=16)),
        RolePlacement(role="reference", layout=Layout(dp=16), offloaded=True),
    )
    pools = (
        Pool(name="all", devices=devices, device="H100-80G", roles=roles),
        _host("reward", "advantage", "data.train", "data.val"),
    )
    memory = (
        _memory("all", "node0/0 .. node1/7", "actor_infer.generate", 80, [("KV cache", "actor_infer", 48.5)]),
        _memory(
            "all",
            "node0/0 .. node1/7",
            "actor_train.update",
            80,
            [
                ("activations", "actor_train", 31.25),
                ("logits", "actor_train", 18.5),
                ("optimizer states", "actor_train", 3.5),
                ("weights", "actor_train", 0.875),
                ("optimizer states", "critic", 3.25),
                ("reserve for fragmentation", None, 2.5),
            ],
        ),
        _memory("host", "node0", "offloaded state", 64, [("offloaded state", "reference", 14.25)]),
    )
    decisions = (
        Decision(
            id="D1",
            what="pools",
            chosen="colocated: 16 devices",
            reason="fastest",
            text="all: actor_train, actor_infer, critic, reference; 1 other way tried, 1 of them fit",
            rejected=(Rejected(option="disaggregated: 8 rollout, 8 train", reason="slower", delta="+22% step time"),),
            override="placement",
        ),
        Decision(
            id="D2",
            what="layout of actor_infer",
            chosen="dp8 tp2",
            reason="smallest_that_fits",
            text="actor_infer on 16 × H100-80G: dp8 tp2",
            rejected=(Rejected(option="dp16", reason="does_not_fit", delta="81.3 of 80.0 GiB in start actor_infer"),),
            override="placement.pools.all.layouts.actor_infer",
        ),
        Decision(
            id="D3",
            what="offload of reference",
            chosen="leaves the devices while others work",
            reason="needed_to_fit",
            text="reference leaves the devices while others work: not all roles of the pool fit at once",
            override="roles.reference.engine.offload",
        ),
    )
    run = StageRun(steps=200, checkpoint_every_steps=20)
    graph = _with_backends(make_ppo())
    warning = Diagnostic(code="FR0604", severity=Severity.WARNING, headline="stale samples without correction")
    stage = _stage("ppo", graph, pools, run, _gpu_seconds, memory, decisions)
    return _plan("ppo-7b", h100_cluster(), [stage], "ppo.yaml", diagnostics=[warning])


def split() -> Plan:
    """PPO with generation on one node and training on the other, one step of lag, and nobody reading the reference."""
    nodes = [tuple(f"node{node}/{place}" for place in range(8)) for node in range(2)]
    train = tuple(RolePlacement(role=name, layout=Layout(dp=8)) for name in ("actor_train", "critic", "reference"))
    infer = (RolePlacement(role="actor_infer", layout=Layout(dp=4, tp=2)),)
    pools = (
        Pool(name="rollout", devices=nodes[0], device="H100-80G", roles=infer),
        Pool(name="train", devices=nodes[1], device="H100-80G", roles=train),
        _host("reward", "advantage", "data.train", "data.val"),
    )
    graph = replace(
        _with_backends(make_ppo(updates=1, max_lag=1)),
        removed=(Removal(id="judge.score", reason="unread", text="nobody reads its rewards"),),
    )
    memory = (
        _memory("rollout", "node0/0 .. node0/7", "actor_infer.generate", 80, [("KV cache", "actor_infer", 60.0)]),
        _memory("train", "node1/0 .. node1/7", "critic.update", 80, [("activations", "critic", 40.0)]),
    )
    stage = _stage("ppo", graph, pools, StageRun(steps=200), _gpu_seconds, memory, ())
    return _plan("ppo-async", h100_cluster(), [stage], "ppo.yaml")


def infeasible() -> Plan:
    """The colocated plan with activations that are too large."""
    plan = colocated()
    (stage,) = plan.stages
    first, update, host = stage.memory
    lines = tuple(replace(line, value=60.0 * GIB) if line.what == "activations" else line for line in update.lines)
    over = replace(update, lines=lines, peak_bytes=int(sum(line.value for line in lines)))
    refusal = Diagnostic(
        code="FR0501",
        severity=Severity.ERROR,
        headline="placement does not fit",
        helps=(
            Help(
                text="any one of these fits (effect on the tightest device and on the estimated step time)\n"
                "  1  roles.actor_train.update.micro_batch_tokens: 8192  −25.0 GiB  +0.4 s"
            ),
        ),
    )
    decisions = tuple(
        replace(each, reason="nearest_to_fitting") if each.reason == "smallest_that_fits" else each
        for each in stage.decisions
    )
    stages = (replace(stage, memory=(first, over, host), decisions=decisions),)
    return replace(plan, verdict="infeasible", stages=stages, diagnostics=(refusal,))


def two_stages() -> Plan:
    """A supervised stage, then GRPO from its checkpoint, in one process on a CPU."""
    cpu = ("node0/0",)
    one = Layout()
    sft_pools = (
        Pool(name="all", devices=cpu, device="cpu", roles=(RolePlacement(role="actor_train", layout=one),)),
        _host("data.train"),
    )
    grpo_pools = (
        Pool(
            name="all",
            devices=cpu,
            device="cpu",
            roles=tuple(RolePlacement(role=name, layout=one) for name in ("actor_train", "actor_infer")),
        ),
        _host("reward", "advantage", "data.train", "data.val"),
    )
    sft = _stage(
        "warmup",
        _with_backends(make_sft()),
        sft_pools,
        StageRun(steps=400),
        lambda id: 0.14 if "update" in id else 0.001,
        (_memory("all", "node0/0", "actor_train.update", 8, [("activations", "actor_train", 0.75)]),),
        (),
    )
    grpo = _stage(
        "grpo",
        _with_backends(_grpo()),
        grpo_pools,
        StageRun(steps=120, checkpoint_every_steps=60),
        _cpu_seconds,
        (_memory("all", "node0/0", "actor_train.update", 8, [("activations", "actor_train", 0.5)]),),
        (),
    )
    started = replace(grpo, starts_from={"policy": "warmup.actor_train"})
    return _plan("quickstart", cpu_cluster(), [sft, started], "quickstart.yaml")


def _grpo() -> Graph:
    full = make_ppo(updates=1)
    kept = [op for op in full.ops if op.role not in ("critic", "reference") and op.id != "actor_train.log_probs"]
    ids = {op.id for op in kept}
    edges = [edge for edge in full.edges if edge.source in ids and edge.target in ids]
    edges.append(weights("actor_train", "actor_infer"))
    return make_graph(kept, edges, full.step)


def crowded() -> Plan:
    """More ops than are drawn: twenty rewards, listed."""
    plan = split()
    (stage,) = plan.stages
    names = [f"actor_infer.generate@{n}" for n in range(1, 11)]
    ops = [make_op(id) for id in names] + [make_op(id.replace("actor_infer.generate", "reward.score")) for id in names]
    edges = [data("data.train", id) for id in names]
    edges += [data(id, id.replace("actor_infer.generate", "reward.score")) for id in names]
    graph = replace(stage.graph, ops=(*stage.graph.ops, *ops), edges=(*stage.graph.edges, *edges))
    return replace(plan, stages=(replace(stage, graph=graph),))


def _host(*roles: str) -> Pool:
    placed = tuple(RolePlacement(role=role, layout=Layout()) for role in roles)
    return Pool(name="host", devices=(), device="host", roles=placed, slots=4)


def _with_backends(graph: Graph) -> Graph:
    def changed(role: Role) -> Role:
        return replace(role, backend=BACKENDS.get(role.name), model="policy" if role.name in GPU_ROLES else None)

    return replace(graph, roles=tuple(map(changed, graph.roles)))


def _gpu_seconds(id: str) -> float:
    exact = {
        "run actor_infer.generate": 18.5,
        "run actor_infer.generate@val": 7.25,
        "run reward.score": 0.4,
        "run advantage.estimate": 0.05,
        "run reference.log_probs": 1.75,
        "run critic.values": 1.75,
        "run actor_train.log_probs": 1.75,
        "send_weights actor_train => actor_infer": 0.25,
        "receive_weights actor_train => actor_infer": 0.5,
        "run actor_train.update": 8.5,
        "run critic.update": 8.0,
    }
    parts = [("run actor_train.update ", 2.125), ("run critic.update ", 2.0), ("load", 0.75), ("offload", 0.5)]
    parts += [("save", 3.0)]
    if id in exact:
        return exact[id]
    return next((seconds for part, seconds in parts if id.startswith(part)), 0.01)


def _cpu_seconds(id: str) -> float:
    seconds = {"run actor_infer.generate": 0.21, "run actor_infer.generate@val": 0.9, "run actor_train.update": 0.3}
    return seconds.get(id, 0.002)


def _memory(pool: str, device: str, phase: str, limit: int, lines: Sequence[tuple[str, str | None, float]]) -> Memory:
    made = tuple(
        LedgerLine(what=what, role=role, value=gib * GIB, unit="bytes", formula="by hand") for what, role, gib in lines
    )
    return Memory(
        pool=pool,
        device=device,
        phase=phase,
        peak_bytes=int(sum(line.value for line in made)),
        limit_bytes=limit * GIB,
        lines=made,
    )


def _stage(
    name: str,
    graph: Graph,
    pools: tuple[Pool, ...],
    run: StageRun,
    seconds: Callable[[str], float],
    memory: tuple[Memory, ...],
    decisions: tuple[Decision, ...],
) -> StagePlan:
    program = emit(graph, pools, run)
    return StagePlan(
        name=name,
        graph=graph,
        pools=pools,
        edges=graph.edges,
        programs=program,
        memory=memory,
        estimate=estimate(
            program, {i.id: seconds(i.id) for i in program.instructions}, graph, (512.0, "assumed"), run.steps
        ),
        decisions=decisions,
        run=run,
    )


def _plan(
    name: str, cluster: Cluster, stages: Sequence[StagePlan], file: str, diagnostics: Sequence[Diagnostic] = ()
) -> Plan:
    return Plan(
        name=name,
        digests=Digests(flow="7f3a9c21" + "0" * 56, cluster="c" * 64, profile="a" * 64, code="b" * 64),
        verdict="fits",
        cluster=cluster,
        sources=(Source(path=file, role="flow"),),
        run=StageRun(steps=stages[-1].run.steps),
        stages=tuple(stages),
        diagnostics=tuple(diagnostics),
    )
