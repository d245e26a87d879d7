"""What is told of a placement that does not fit: each edit fits, the cheapest come first, and few are tried in vain."""

from __future__ import annotations

import re

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph
from flowrl.machine.shorthand import larger_by, parse_cluster, roomier
from flowrl.placement.relax import Edit, cluster_edits, device_edits, fewer_prompts, role_edits
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.placement.search import search
from flowrl.placement.tries import MOST_WORK, SHOWN, Tries, fixes
from flowrl.plan.plan import LedgerLine, Memory
from flowrl.spec import loads
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

TIGHT = with_placement(
    GRPO.replace("recompute: full", "recompute: none")
    .replace("backend: fsdp", "backend: deepspeed")
    .replace("update: {loss: ppo}", "update: {loss: ppo, micro_batch_tokens: 16384}"),
    "colocated",
)
BIG = PPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-72B")


def refusal(told: Told) -> Diagnostic:
    (found,) = (each for each in told.placement.diagnostics if each.code == "FR0501")
    return found


def shown(told: Told) -> list[tuple[str, float]]:
    """Text and seconds of each edit."""
    rows = refusal(told).helps[0].text.splitlines()[1:]
    found: list[tuple[str, float]] = []
    for row in rows:
        parts = re.split(r"  +", row.strip())
        found.append(
            (parts[1], float(parts[-1].removesuffix(" s").replace("−", "-").replace(",", "").replace("+", "")))
        )
    return found


def fits(told: Told, cluster: str) -> bool:
    return search(told.graph, parse_cluster(cluster), told.request, told.shapes).best.laid.fits


def test_more_devices_and_devices_of_more_memory_are_named_and_fit() -> None:
    told = told_text(BIG, "16xH100-80G")
    edits = [text for text, _ in shown(told)]
    assert len(edits) == 2
    for text in edits:
        key, _, cluster = text.partition(": ")
        assert key == "cluster"
        assert fits(told, cluster)
    nodes, each, name = edits[0].removeprefix("cluster: ").split("x")
    assert (each, name) == ("8", "H100-80G")
    assert not fits(told, f"{int(nodes) - 1}x8xH100-80G"), "the fewest nodes that are enough"
    assert edits[1].endswith("H200")


def test_edits_of_the_flow_come_in_the_order_of_their_cost() -> None:
    told = shown(told_text(TIGHT))
    own = [seconds for text, seconds in told if not text.startswith("cluster")]
    assert own
    assert own == sorted(own)
    assert len(told) <= SHOWN


def test_the_seconds_of_an_edit_are_those_of_its_plan() -> None:
    told = told_text(BIG, "16xH100-80G")
    found = search(told.graph, told.cluster, told.request, told.shapes)
    tightest = max(told.placement.memory, key=lambda each: each.peak_bytes / each.limit_bytes)
    for fix in fixes((told.graph, told.cluster, told.request), told.shapes, tightest, found.best):
        graph, cluster, request = fix.apply((told.graph, told.cluster, told.request))
        again = search(graph, cluster, request, told.shapes).best
        assert again.laid.fits
        assert again.seconds - found.best.seconds == pytest.approx(fix.added_seconds)


def test_tries_are_bounded() -> None:
    told = told_text(TIGHT)
    best = search(told.graph, told.cluster, told.request, told.shapes).best
    tightest = max(told.placement.memory, key=lambda each: each.peak_bytes / each.limit_bytes)
    tries = Tries((told.graph, told.cluster, told.request), told.shapes, tightest, best, left=3)
    asked: list[int] = []

    def fails(situation: object) -> object:
        asked.append(1)
        return situation

    edit = Edit(steps=tuple((str(n), fails) for n in range(50)))  # type: ignore[misc]
    assert tries.fitting([edit], best) == []
    assert (len(asked), tries.left) == (3, 0)
    assert MOST_WORK <= 60, "about a second of a slow core"


def _entry(phase: str, peak: int, **roles: int) -> Memory:
    lines = tuple(LedgerLine(what="x", role=r, value=v, unit="bytes", formula="x") for r, v in roles.items())
    return Memory(pool="all", device="node0/0", phase=phase, peak_bytes=peak, limit_bytes=100, lines=lines)


def test_an_edit_that_touches_too_little_is_not_tried() -> None:
    edit = Edit(steps=(), roles=frozenset({"actor"}))
    assert edit.may_help([_entry("actor.update", 150, actor=60, critic=90)])
    assert not edit.may_help([_entry("actor.update", 150, actor=40, critic=110)])
    assert not edit.may_help([_entry("actor.update", 150, actor=60), _entry("critic.update", 150, actor=10)])
    starts = Edit(steps=(), roles=frozenset({"infer"}), phases=frozenset({"start infer"}))
    assert starts.may_help([_entry("start infer", 150, infer=1)])
    assert not starts.may_help([_entry("infer.generate", 150, infer=150)])


@pytest.mark.parametrize("enough", range(12))
def test_the_weakest_form_that_fits_is_found(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides that double and then halve give the first of steps that fit from some step on."""
    told = told_text(GRPO)
    best = search(told.graph, told.cluster, told.request, told.shapes).best
    tries = Tries((told.graph, told.cluster, told.request), told.shapes, told.placement.memory[0], best)
    monkeypatch.setattr(Tries, "_placed", lambda self, apply, anew: best if apply(None) >= enough else None)
    edit = Edit(steps=tuple((str(n), lambda _, n=n: n) for n in range(12)))  # type: ignore[misc]
    (fix,) = tries.fitting([edit], best)
    assert fix.text == str(enough)


def test_clusters_grow_by_a_node_and_devices_by_their_memory() -> None:
    cluster = parse_cluster("2x8xH100-80G")
    texts = [text for text, _ in larger_by(cluster, cluster.groups[0])]
    assert texts[:2] == ["3x8xH100-80G", "4x8xH100-80G"]
    assert texts[-1] == "32x8xH100-80G"
    small = parse_cluster("2xH100-80G")
    assert [text for text, _ in larger_by(small, small.groups[0])][:3] == [
        "1x4xH100-80G",
        "1x8xH100-80G",
        "2x8xH100-80G",
    ]
    larger = [grown.groups[0].device for _, grown in roomier(cluster)]
    own = cluster.groups[0].device
    assert larger
    assert all(each.memory_bytes > own.memory_bytes for each in larger)
    assert all(each.bf16_flops_per_second >= own.bf16_flops_per_second for each in larger)
    assert [each.memory_bytes for each in larger] == sorted(each.memory_bytes for each in larger)
    cpu = parse_cluster("3xcpu")
    assert larger_by(cpu, cpu.groups[0]) == roomier(cpu) == []


def test_written_pools_do_not_grow() -> None:
    cluster = parse_cluster("2x8xH100-80G")
    assert list(cluster_edits(cluster, PlacementRequest(mode=Mode.POOLS))) == []
    assert len(list(device_edits(cluster))) == 1


def test_engines_are_given_less_or_where_they_do_not_start_more() -> None:
    written = GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.85},")
    told = told_text(written)
    lower, higher = [e for e in role_edits(told.graph, frozenset({"actor_infer"})) if "kv_fraction" in e.steps[0][0]]
    assert lower.steps[0][0].endswith("0.80")
    assert higher.steps[0][0].endswith("0.90")
    assert higher.phases == frozenset({"start actor_infer"})
    open_ = role_edits(told_text(GRPO).graph, frozenset({"actor_infer"}))
    assert [e.phases for e in open_ if "kv_fraction" in e.steps[0][0]] == [higher.phases]  # placement chose the less


HELD = with_placement(
    GRPO.replace("backend: vllm,", "backend: hf,").replace("prompts: 128,", "prompts: 512,"),
    "colocated",
)
"""transformers' generate keeps all rows of a rank at once."""
LONG = with_placement(
    GRPO.replace(
        "{prompts: 128, samples_per_prompt: 8, updates: 2}", "{prompts: 900000, samples_per_prompt: 32, updates: 4}"
    ),
    "colocated",
)
"""2.6 TiB of rows at the controller."""


@pytest.mark.parametrize(("flow", "unit", "binds"), [(HELD, 2, "KV cache"), (LONG, 4, "rows of a step")])
def test_the_largest_step_that_fits_is_named(flow: str, unit: int, binds: str) -> None:
    """The edited flow fits, and one with a prompt more in each update does not: both written out and placed anew."""
    told = told_text(flow)
    assert binds in "".join(refusal(told).notes)
    (edit,) = (text for text, _ in shown(told) if text.startswith("step.prompts: "))
    most = int(edit.removeprefix("step.prompts: "))
    assert most % unit == 0
    written = re.compile(r"(?<=\{prompts: )\d+")
    assert told_text(written.sub(str(most), flow)).placement.diagnostics == ()
    assert refusal(told_text(written.sub(str(most + unit), flow)))


@pytest.mark.parametrize(("share", "updates"), [(1.0, 4), (0.75, 2), (0.5, 3), (0.25, 2)])
def test_steps_named_are_those_that_the_passes_allow(share: float, updates: int) -> None:
    """Brute force: each smaller number of prompts, written out and compiled."""
    best = (
        f"  best: {{kind: filter, rule: threshold, unit: group, keep_top: {share}, by: reward.rewards}}\n  advantage:"
    )
    kept = GRPO.replace("  advantage:", best).replace("prompts: 128", "prompts: 24")
    kept = kept.replace("reward.score -> advantage", "reward.score -> best.select\n  - best.select -> advantage")
    flow = (kept if share < 1 else GRPO.replace("prompts: 128", "prompts: 24")).replace(
        "updates: 2", f"updates: {updates}"
    )

    def graph(prompts: int) -> Graph | None:
        try:
            return run_passes(lower_stage(loads(flow.replace("prompts: 24", f"prompts: {prompts}")), 0))[0]
        except FlowError:
            return None

    whole = graph(24)
    assert whole is not None
    (edit,) = fewer_prompts(whole, 1)
    legal = {count: found for count in range(23, 0, -1) if (found := graph(count)) is not None}
    assert [text for text, _ in edit.steps] == [f"step.prompts: {count}" for count in legal]
    for (_, apply), found in zip(edit.steps, legal.values(), strict=True):
        edited = apply((whole, parse_cluster("8xH100-80G"), PlacementRequest()))[0]
        assert edited.step.prompts == found.step.prompts
        assert [op.params for op in edited.ops] == [op.params for op in found.ops]
