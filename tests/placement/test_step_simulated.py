"""The step that placements are compared by is what their program takes: on every preset, placed in four ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.execution.expand import ratio_of
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import steady
from flowrl.graph.graph import Kind
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.devices import allocate
from flowrl.placement.memory.pool import memory
from flowrl.placement.shapes import shapes_of
from flowrl.placement.time.instructions import durations
from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import Memory, Pool, RolePlacement, StageRun
from flowrl.program.program import InstructionKind
from flowrl.spec import loads
from flowrl.spec.presets import preset_names
from tests.placement.flows import GRPO
from tests.placement.plans import Case
from tests.spec.preset_flows import EXAMPLES, minimal

REFILLED = (
    GRPO.replace("  - reward.score -> advantage.estimate\n", "  - informative.select -> advantage.estimate\n")
    .replace("updates: 2", "updates: 2, refill: {max_rounds: 4}")
    .replace("roles:\n", "roles:\n  informative: {kind: filter, rule: zero_spread, by: reward.rewards}\n")
    .replace("edges:\n", "edges:\n  - reward.score -> informative.select\n  - data.train -> actor_infer.generate@val\n")
    .replace("  - actor_train =>", "  - actor_infer.generate@val -> reward.score@val\n  - actor_train =>")
)
"""A model scores in every round, and a call of the engine waits behind them."""
CLUSTER = lower_cluster("4x8xH100-80G")
WAYS = ("colocated", "split", "standalone", "mixed")


@lru_cache(maxsize=4)
def case_of(preset: str, lag: int) -> Case:
    text = minimal(preset) + (f"schedule: {{max_lag: {lag}}}\n" if lag else "")
    spec = loads(text, folder=EXAMPLES)
    graph, _ = run_passes(lower_stage(spec, 0))
    return Case((preset, str(lag)), graph, CLUSTER, lower_placement(spec, 0), shapes_of(graph, EXAMPLES))


def parts(here: Case, way: str) -> list[list[str]]:
    """Roles of each pool. Split: generators and the rest. Mixed: generators with all that is frozen, and trainers."""
    makes = [role for role in here.roles if here.graph.role(role).kind is Kind.GENERATOR]
    frozen = [role for role in here.roles if role not in makes and not here.graph.role(role).trainable]
    trained = [role for role in here.roles if role not in (*makes, *frozen)]
    found = {
        "colocated": [list(here.roles)],
        "split": [makes, [*frozen, *trained]],
        "standalone": [[role] for role in here.roles],
        "mixed": [[*makes, *frozen], trained],
    }
    return [part for part in found[way] if part]


def pools_of(here: Case, way: str, *, leave: bool) -> tuple[Pool, ...]:
    """Each pool as large as the others, its roles in their first layout; those that can leave their devices do."""
    own, costs = parts(here, way), here.costs()
    count = 1 << ((CLUSTER.device_count // len(own)).bit_length() - 1)
    group, found = CLUSTER.groups[0], list[Pool]()
    for number, (part, devices) in enumerate(
        zip(own, allocate(CLUSTER, [(group.name, count)] * len(own)), strict=True)
    ):
        site = costs.site(here.pool(f"pool{number}", devices))
        entries = tuple(
            RolePlacement(
                role=role,
                layout=here.legal(role, site)[0],
                offloaded=leave and len(part) > 1 and TRAITS[here.graph.role(role).backend or ""].offload,
            )
            for role in part
        )
        found.append(here.pool(f"pool{number}", devices, entries))
    return here.pools(*found)


def both(here: Case, pools: tuple[Pool, ...], ledger: tuple[Memory, ...] = ()) -> tuple[float, float]:
    """Of the search, and of the program."""
    program = emit(here.graph, pools, StageRun(steps=100), ledger, fits=False)
    seconds = durations(here.graph, pools, program, here.shapes, here.cluster, request=here.request)
    return step_seconds(here.graph, pools, here.shapes, here.cluster, here.request), ratio_of(program, seconds)[0]


def all_ways(here: Case) -> Iterator[tuple[Pool, ...]]:
    for way in WAYS:
        for leave in (False, True):
            yield pools_of(here, way, leave=leave)


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("preset", preset_names())
def test_a_step_is_the_cycle_ratio_of_the_program(preset: str, lag: int) -> None:
    if lag and "generate" not in minimal(preset) and preset in ("rm", "sft"):
        lag = 0  # no weights edge, so no lag
    here = case_of(preset, lag)
    for pools in all_ways(here):
        compared, taken = both(here, pools)
        assert compared == pytest.approx(taken, rel=1e-9)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_step_with_rounds_of_refill(lag: int) -> None:
    spec = loads(f"{REFILLED}schedule: {{max_lag: {lag}}}\n", folder=EXAMPLES)
    graph, _ = run_passes(lower_stage(spec, 0))
    here = Case(("refilled", f"{lag}"), graph, CLUSTER, lower_placement(spec, 0), shapes_of(graph, EXAMPLES))
    for pools in all_ways(here):
        compared, taken = both(here, pools)
        assert compared == pytest.approx(taken, rel=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_engines_that_wake_in_two_parts(way: str) -> None:
    """As the ledger of the plan has it: the cache is made after new weights are in."""
    here = case_of("ppo", 1)
    pools = pools_of(here, way, leave=True)
    ledger = memory(here.graph, pools, here.shapes, here.cluster, request=here.request)
    program = emit(here.graph, pools, StageRun(steps=100), ledger, fits=False)
    wakes = any(i.kind is InstructionKind.WAKE_CACHE for i in program.instructions)
    assert wakes == (way in ("colocated", "mixed"))
    compared, taken = both(here, pools, ledger)
    assert compared == pytest.approx(taken, rel=1e-9)


@pytest.mark.parametrize("preset", ["grpo", "safe_rlhf"])
def test_the_clock_takes_as_long(preset: str) -> None:
    """The virtual clock itself, step 40 to step 60, not the ratio."""
    here = case_of(preset, 1)
    pools = pools_of(here, "split", leave=True)
    program = emit(here.graph, pools, StageRun(steps=100))
    seconds = durations(here.graph, pools, program, here.shapes, here.cluster, request=here.request)
    last = next(i.id for i in reversed(program.instructions) if i.id.startswith("run actor_train.update"))
    spans = simulate(program, seconds, 60).spans
    start = {span.step: span.start_seconds for span in spans if span.instruction == last}
    compared = step_seconds(here.graph, pools, here.shapes, here.cluster, here.request)
    assert (start[60] - start[40]) / 20 == pytest.approx(compared, rel=1e-9)


def many_on_the_host() -> Case:
    """20 rewards of the same responses: more roles on the host than its 16 slots."""
    names = [f"score{number}" for number in range(20)]
    roles = "\n".join(
        f"  {name}: {{kind: reward, function: 'flowrl:overlong', args: {{max_tokens: 1024, "
        f"buffer_tokens: 8, penalty: 1.0}}}}"
        for name in names
    )
    parts_of = ", ".join(f"{name}: 1.0" for name in names)
    text = f"""
flowrl: 1
name: many
models: {{policy: {{source: Qwen/Qwen2.5-0.5B}}}}
data: {{train: {{source: rows.jsonl, max_prompt_tokens: 512}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 1024}}}}
{roles}
  reward: {{kind: reward, combine: {{{parts_of}}}}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> {", ".join(f"{name}.score" for name in names)}
  - {", ".join(f"{name}.score" for name in names)} -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 64, samples_per_prompt: 8}}
assume: {{{", ".join(f"{name}.score: {{seconds: 0.05}}" for name in names)}}}
"""
    spec = loads(text, folder=".")
    graph, _ = run_passes(lower_stage(spec, 0))
    return Case(("many", ""), graph, CLUSTER, lower_placement(spec, 0), shapes_of(graph, "."))


def test_with_too_few_slots_it_is_a_lower_bound() -> None:
    """Stated in docs/adr/0089: no less than the work of the host over its slots, no more than what is simulated."""
    here = many_on_the_host()
    pools = pools_of(here, "split", leave=False)
    host = pools[-1]
    program = emit(here.graph, pools, StageRun(steps=100))
    seconds = durations(here.graph, pools, program, here.shapes, here.cluster, request=here.request)
    work = sum(seconds[i.id] for i in program.instructions if i.pool == host.name)
    assert host.slots == 16 < len([role for role in here.graph.roles if not needs_devices(role)])
    compared = step_seconds(here.graph, pools, here.shapes, here.cluster, here.request)
    assert work / 16 <= compared * (1 + 1e-9)
    assert compared < steady(program, seconds).step_seconds
