"""Lowered graphs and pools made by hand: what the passes would give for a few small flows."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Model, Op, Role, Schedule, Step
from flowrl.graph.params import GenerateParams, UpdateParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout, Pool, RolePlacement

KINDS = {
    "data": Kind.DATA,
    "actor_train": Kind.TRAINER,
    "critic": Kind.TRAINER,
    "actor_infer": Kind.GENERATOR,
    "reference": Kind.SCORER,
    "reward": Kind.REWARD,
    "advantage": Kind.ESTIMATOR,
    "alice": Kind.GENERATOR,
    "bob": Kind.GENERATOR,
    "alice_train": Kind.TRAINER,
    "alice_adv": Kind.ESTIMATOR,
    "env": Kind.ENV,
}


def make_op(id: str, firings: int = 1, epochs: int = 1, every_steps: int = 1, start_step: int = 0) -> Op:
    role, rest = (id, "read") if id.startswith("data.") else id.split(".", 1)
    method, _, label = rest.partition("@")
    params = UpdateParams(loss="ppo", updates=firings // epochs, epochs=epochs) if method == "update" else None
    return Op(
        id=id,
        role=role,
        method=method,
        label=label or None,
        granularity=Granularity.MINIBATCH if method == "update" else Granularity.SAMPLE,
        params=GenerateParams(max_response_tokens=128) if method == "generate" else params,
        firings=firings,
        every_steps=every_steps,
        start_step=start_step,
    )


def data(source: str, target: str) -> Edge:
    edge = f"{source} -> {target}"
    return Edge(id=edge, kind=EdgeKind.DATA, source=source, target=target, fields=("x",), origin=(edge,))


def state(source: str, target: str) -> Edge:
    return Edge(id=f"{source} before {target}", kind=EdgeKind.STATE, source=source, target=target, derived=True)


def weights(source: str, target: str, tokens: int = 1) -> Edge:
    edge = f"{source} => {target}"
    return Edge(id=edge, kind=EdgeKind.WEIGHTS, source=source, target=target, origin=(edge,), tokens=tokens)


def make_graph(ops: Sequence[Op], edges: Sequence[Edge], step: Step, max_lag: int = 0) -> Graph:
    names = list(dict.fromkeys(op.role for op in ops))
    trained = {op.role for op in ops if op.method == "update"}
    return Graph(
        name="by hand",
        models=(Model(name="policy", source="folder"),),
        roles=tuple(Role(name=name, kind=KINDS[name.partition(".")[0]], trainable=name in trained) for name in names),
        ops=tuple(ops),
        declared=tuple(edge for edge in edges if not edge.derived),
        edges=tuple(edges),
        step=step,
        schedule=Schedule(max_lag=max_lag),
    )


def make_ppo(updates: int = 4, epochs: int = 1, max_lag: int = 0) -> Graph:
    firings = updates * epochs
    ops = [
        make_op("data.train"),
        make_op("actor_infer.generate"),
        make_op("reward.score"),
        make_op("reference.log_probs"),
        make_op("critic.values"),
        make_op("actor_train.log_probs"),
        make_op("advantage.estimate"),
        make_op("actor_train.update", firings, epochs),
        make_op("critic.update", firings, epochs),
        make_op("data.val", every_steps=20),
        make_op("actor_infer.generate@val", every_steps=20),
        make_op("reward.score@val", every_steps=20),
    ]
    forward = ("reward.score", "reference.log_probs", "critic.values", "actor_train.log_probs")
    edges = [
        data("data.train", "actor_infer.generate"),
        *(data("actor_infer.generate", target) for target in forward),
        *(data(source, "advantage.estimate") for source in forward),
        data("actor_infer.generate", "actor_train.update"),
        data("advantage.estimate", "actor_train.update"),
        data("advantage.estimate", "critic.update"),
        data("data.val", "actor_infer.generate@val"),
        data("actor_infer.generate@val", "reward.score@val"),
        state("actor_train.log_probs", "actor_train.update"),
        state("critic.values", "critic.update"),
        weights("actor_train", "actor_infer", 1 + max_lag),
    ]
    step = Step(prompts=128, samples_per_prompt=8, updates=updates, epochs=epochs)
    return make_graph(ops, edges, step, max_lag)


def make_sft() -> Graph:
    ops = [make_op("data.train"), make_op("actor_train.update")]
    return make_graph(ops, [data("data.train", "actor_train.update")], Step(prompts=128))


def make_pool(name: str, roles: Sequence[str], offloaded: Sequence[str] = (), devices: int = 1, slots: int = 1) -> Pool:
    return Pool(
        name=name,
        devices=tuple(f"node0/{place}" for place in range(devices)),
        device="H100-80G" if devices else "host",
        roles=tuple(
            RolePlacement(role=role, layout=Layout(dp=max(devices, 1)), offloaded=role in offloaded) for role in roles
        ),
        slots=slots,
    )


GPU_ROLES = ("actor_train", "actor_infer", "critic", "reference")


def one_pool() -> tuple[Pool, ...]:
    """Everything on the same devices, each role leaving them while others work."""
    return (make_pool("all", GPU_ROLES, offloaded=GPU_ROLES), host_pool())


def split_pools() -> tuple[Pool, ...]:
    return (
        make_pool("infer", ["actor_infer"]),
        make_pool("train", ("actor_train", "critic", "reference")),
        host_pool(),
    )


def host_pool() -> Pool:
    return make_pool("host", ("reward", "advantage"), devices=0, slots=4)
