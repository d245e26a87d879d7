"""Drawn plans for tests of cost: flows with cards of real models, their roles in pools, each in one of its choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from hypothesis import strategies as st

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.placed import needs_devices, sides
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.cuts import Ground, cuts, searched_axes
from flowrl.placement.devices import allocate
from flowrl.placement.layouts import host_pool
from flowrl.placement.micro_batches import cut_ops
from flowrl.placement.request import PlacementRequest
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import Layout, Pool, RolePlacement
from flowrl.spec import loads
from tests.placement.flows import GRPO, PPO
from tests.placement.test_groups import DEBATE

FREE = PPO.replace("engine: {recompute: full}, ", "").replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-1.5B")
LORA = FREE.replace(
    "{policy: {source: Qwen/Qwen2.5-1.5B}", "{policy: {source: Qwen/Qwen2.5-1.5B, lora: {rank: 32, alpha: 64}}"
)
SCORED = re.sub(
    "backend: vllm", "backend: {1}", GRPO.replace("{", "{{").replace("}", "}}").replace("Qwen/Qwen2.5-7B", "{0}")
)
ENV = DEBATE.replace("alice.generate, bob.generate <-> room.step", "alice.generate <-> room.step").replace(
    "  bob: {kind: generator, model: policy, backend: vllm, frozen: true, generate: {max_response_tokens: 512}}\n", ""
)
FLOWS: Mapping[str, str] = {
    "ppo": FREE,
    "ppo of Megatron": FREE.replace("backend: fsdp", "backend: megatron"),
    "ppo of DeepSpeed": FREE.replace("backend: fsdp", "backend: deepspeed").replace(
        "backend: vllm", "backend: deepspeed"
    ),
    "ppo of an adapter": LORA,
    "ppo one step late": f"{FREE}schedule: {{max_lag: 1}}\n",
    "grpo with a reward model": GRPO,
    "grpo of experts": GRPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B").replace(
        "backend: vllm", "backend: sglang"
    ),
    "grpo of transformers": GRPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B").replace(
        "backend: vllm", "backend: hf"
    ),
    "two that talk": DEBATE,
    "one in an environment": ENV,
}
CLUSTERS = ("4xH100-80G", "8xA100-40G", "2x8xH100-80G", "3x4xL40S")


@dataclass(frozen=True)
class Case:
    key: tuple[str, str]
    """Its flow and cluster by name."""
    graph: Graph
    cluster: Cluster
    request: PlacementRequest
    shapes: Mapping[str, ModelShape]

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.graph.roles if needs_devices(role))

    def costs(self) -> RoleCosts:
        return RoleCosts(Workload(self.graph, self.shapes, self.request), self.cluster)

    def legal(self, role: str, site: Site) -> list[Layout]:
        """Legal layouts of all sizes, at most six."""
        here, group = self.graph.role(role), site.group
        if here.model is None:
            return [Layout(dp=site.count)]
        where = Ground(site.count, group.devices_per_node, site.even, group.linked_devices)
        found = cuts(here, self.shapes[here.model], where, searched_axes(here))
        return found[:: -(-len(found) // 6)]

    def pool(self, name: str, devices: tuple[str, ...], roles: tuple[RolePlacement, ...] = ()) -> Pool:
        return Pool(name=name, devices=devices, device=self.cluster.groups[0].device.name, roles=roles)

    def pools(self, *pools: Pool) -> tuple[Pool, ...]:
        host = host_pool(self.graph)
        return (*pools, *([host] if host is not None else []))

    def choices(self, role: str, site: Site) -> list[RolePlacement]:
        """Every layout, with two sizes of micro-batches, on or off the devices, with every recomputation."""
        here = self.graph.role(role)
        away = (False, True) if TRAITS[here.backend or ""].offload else (False,)
        ways = (
            ("none", "full") if here.trainable and here.engine.recompute is None else (here.engine.recompute or "none",)
        )
        sizes = (None, 4096) if cut_ops(here, [op for op in self.graph.ops if op.role == role]) else (None,)
        return [
            RolePlacement(role=role, layout=layout, offloaded=off, recompute=way, micro_batch_tokens=size)
            for layout, size, off, way in product(self.legal(role, site), sizes, away, ways)
        ]


@lru_cache
def case(flow: str, cluster: str) -> Case:
    spec = loads(FLOWS[flow], folder=".")
    graph, _ = run_passes(lower_stage(spec, 0))
    return Case((flow, cluster), graph, lower_cluster(cluster), lower_placement(spec, 0), shapes_of(graph, "."))


cases = st.builds(case, st.sampled_from(sorted(FLOWS)), st.sampled_from(CLUSTERS))


@lru_cache
def kept_costs(flow: str, cluster: str) -> RoleCosts:
    """Costs that all plans of a case ask, as those of one search do: a key that says too little would mix them up."""
    return case(flow, cluster).costs()


@st.composite
def plans(draw: st.DrawFn) -> tuple[Case, tuple[Pool, ...]]:
    """A case with its roles in pools, each in one of its legal choices, whether it fits or not."""
    here = draw(cases)
    apart = [set(side) for side in sides(here.graph)]
    parts: list[list[str]] = []
    most = here.cluster.device_count
    for role in here.roles:
        free = [part for part in parts if not any({role, other} <= side for side in apart for other in part)]
        room = [*range(len(free)), len(free)] if len(parts) < min(3, most) else range(len(free))
        chosen = draw(st.sampled_from(room))
        (free[chosen] if chosen < len(free) else parts.append([]) or parts[-1]).append(role)
    counts: list[int] = []
    for left in range(len(parts) - 1, -1, -1):
        counts.append(draw(st.integers(1, most - sum(counts) - left)))
    devices = allocate(here.cluster, [(here.cluster.groups[0].name, count) for count in counts])
    costs, pools = here.costs(), list[Pool]()
    for number, (part, names) in enumerate(zip(parts, devices, strict=True)):
        site = costs.site(here.pool(f"pool{number}", names))
        ways = ([each for each in here.choices(role, site) if len(part) > 1 or not each.offloaded] for role in part)
        roles = tuple(draw(st.sampled_from(each)) for each in ways)
        pools.append(here.pool(f"pool{number}", names, roles))
    return here, here.pools(*pools)
