"""Plan diffs: nothing that means something is missed, nothing else is told, and every change has its effect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError
from flowrl.diag.span import Span
from flowrl.explain.why_not import Binding, Blame, WhyNot
from flowrl.plan.changes import SECTIONS, Change, Effect, PlanDiff, Total
from flowrl.plan.diff import diff
from flowrl.plan.digests import meaning
from flowrl.plan.io import dumps, loads
from flowrl.plan.leaves import MISSING, leaves
from flowrl.plan.plan import Layout, Plan, Pool, RolePlacement, Source
from flowrl.report.diff import diff_json, render_diff
from tests.placement.flows import PPO
from tests.placement.told import told_text
from tests.plan.strategies import values
from tests.plan.test_io import PLAN, small_plan

SLOW = settings(deadline=None, max_examples=8, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
STAGE = PLAN.stages[0]
ROOT = Path(__file__).parents[2]


def changes(after: Plan, before: Plan = PLAN) -> dict[str, Change]:
    return {each.what: each for each in diff(before, after).changes}


def staged(**fields: Any) -> Plan:
    return replace(PLAN, stages=(replace(STAGE, **fields),))


def graphed(**fields: Any) -> Plan:
    graph = replace(STAGE.graph, **fields)
    return staged(graph=graph, edges=graph.edges)


def test_a_plan_equals_itself() -> None:
    found = diff(PLAN, small_plan(), ("a.json", "b.json"))
    assert not found.differs
    assert found.changes == ()
    assert "b.json runs what a.json runs; nothing to rebuild" in render_diff(found)


def test_another_name_of_a_flow_without_stages_is_all_that_a_rename_changes() -> None:
    before = replace(PLAN, name="one", stages=(replace(STAGE, name="one"),))
    after = replace(PLAN, name="two", stages=(replace(STAGE, name="two"),))
    found = diff(before, after)
    assert [(each.what, each.before, each.after) for each in found.changes] == [("name", "one", "two")]
    assert all(each.stage is None and each.before == each.after for each in found.totals)
    staged_flow = diff(before, replace(after, name="one"))
    assert {each.what for each in staged_flow.changes} == {"stage one", "stage two"}


@SLOW
@given(values(Plan))
def test_any_plan_equals_itself(plan: Plan) -> None:
    plan = replace(plan, stages=plan.stages[:1])
    assert diff(plan, plan).changes == ()


@SLOW
@given(values(Plan), values(Plan))
def test_any_two_plans_can_be_told(one: Plan, other: Plan) -> None:
    found = diff(replace(one, stages=one.stages[:1]), replace(other, stages=other.stages[:1]))
    assert {each.section for each in found.changes} <= set(SECTIONS)
    assert all(len(line) <= 80 for line in render_diff(found, 80).splitlines())
    assert json.loads(diff_json(found))["differs"] == found.differs


SKIPPED = re.compile(
    r"digests|search|flags|decisions|memory|estimate|diagnostics|flowrl_plan|\bspans?\b|_spans?\b|lines|overlap|origin|derived"
)


@settings(deadline=None, max_examples=30, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_value_is_missed(data: st.DataObject) -> None:
    """A value of a real plan becomes another of its kind: the diff tells it."""
    plain = json.loads(dumps(PLAN))
    here, path = plain, ""
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        path += f".{key}"
        assume(not SKIPPED.search(path.replace("_", " _")))
        value = here[key]
        if not isinstance(value, dict | list):
            here[key] = not value if isinstance(value, bool) else _other(value)
            break
        assume(len(value) > 0)
        here = value
    try:
        other = loads(json.dumps(plain).encode())
    except FlowError:
        assume(False)
        return
    assume(meaning(other) != meaning(PLAN))
    assert diff(PLAN, other).differs, path


def _other(value: Any) -> Any:
    return f"{value}x" if isinstance(value, str) else 3 if value is None else value + 1


@pytest.mark.parametrize("name", ["roles", "ops", "edges", "models", "declared"])
def test_the_order_of_a_graphs_parts_means_nothing(name: str) -> None:
    assert not changes(graphed(**{name: tuple(reversed(getattr(STAGE.graph, name)))}))


def test_places_in_sources_mean_nothing() -> None:
    span = Span("other.yaml", 3, 1, 3, 9)
    assert not changes(graphed(roles=tuple(replace(role, span=span) for role in STAGE.graph.roles)))


def test_bytes_of_a_flow_file_do_not_count_but_those_of_functions_do() -> None:
    files = (Source(path="ppo.yaml", role="flow", digest="1"), Source(path="rewards.py", role="function", digest="1"))
    before = replace(PLAN, sources=files)
    assert not changes(replace(PLAN, sources=(replace(files[0], digest="2"), files[1])), before)
    moved = changes(replace(PLAN, sources=(files[0], replace(files[1], digest="2"))), before)
    assert moved["function rewards.py"].effect is Effect.RESTART
    assert moved["function rewards.py"].reason == "file_changed"


EFFECTS = [
    ("step: {prompts: 128", "step: {prompts: 256", "step.prompts", Effect.LIVE),
    ("tokens: 2048}}", "tokens: 2048, temperature: 0.9}}", "actor_infer.generate.temperature", Effect.LIVE),
    ("backend: vllm", "backend: vllm, engine: {kv_fraction: 0.5}", "actor_infer.engine.kv_fraction", Effect.RESTART),
    ("samples_per_prompt: 8, updates: 4", "samples_per_prompt: 8, updates: 2", "step.updates", Effect.RECOMPILE),
    ("loss: ppo", "loss: ppo, clip_ratio: 0.3", "actor_train.update.clip_low", Effect.LIVE),
    ("tokens: 2048}}", "tokens: 1024}}", "actor_infer.generate.max_response_tokens", Effect.RESTART),
    ("gae, kl: {coef: 0.001}", "gae, kl: {coef: 0.002}", "advantage.estimate.kl.coef", Effect.LIVE),
]


@pytest.mark.parametrize(("old", "new", "what", "effect"), EFFECTS)
def test_each_change_of_a_flow_has_its_effect(old: str, new: str, what: str, effect: Effect) -> None:
    assert old in PPO
    told = told_text(PPO.replace(old, new))
    found = changes(staged(graph=told.graph, edges=told.graph.edges))
    assert found[what].effect is effect


def test_a_change_is_shown_where_the_second_flow_says_it() -> None:
    text = PPO.replace("max_response_tokens: 2048", "max_response_tokens: 1024")
    graph = told_text(text).graph
    found = changes(staged(graph=graph, edges=graph.edges))
    span = found["actor_infer.generate.max_response_tokens"].span
    assert span is not None
    assert "max_response_tokens: 1024" in text.splitlines()[span.line - 1]


def _pool(pool: Pool, **fields: Any) -> Plan:
    return staged(pools=tuple(replace(each, **fields) if each.name == pool.name else each for each in STAGE.pools))


POOL = next(pool for pool in STAGE.pools if pool.devices)
ENTRY = POOL.roles[0]


def _entry(**fields: Any) -> dict[str, Change]:
    return changes(_pool(POOL, roles=(replace(ENTRY, **fields), *POOL.roles[1:])))


def test_effects_of_placement() -> None:
    name = ENTRY.role
    layout = Layout(dp=ENTRY.layout.dp, tp=ENTRY.layout.tp * 2)
    assert _entry(layout=layout)[f"layout of {name}"].effect is Effect.MOVE
    assert _entry(recompute="selective")[f"recompute of {name}"].effect is Effect.RESTART
    generator = next(r.name for r in STAGE.graph.roles if r.kind == "generator")
    turned = {entry.role: replace(entry, offloaded=not entry.offloaded) for entry in POOL.roles}
    told = changes(_pool(POOL, roles=tuple(turned.values())))
    restarted = [what for what, each in told.items() if each.effect is Effect.RESTART]
    assert restarted == [f"offload of {generator}"]
    devices = changes(_pool(POOL, devices=POOL.devices[:-1]))[f"devices of {POOL.name}"]
    assert (devices.effect, devices.before is not None) == (Effect.MOVE, True)
    assert f"{len(POOL.devices)} × " in str(devices.before)


def test_a_role_that_moves_is_told_once() -> None:
    rest, moved = POOL.roles[1:], POOL.roles[0]
    own = Pool(name="own", devices=("node9/0",), device=POOL.device, roles=(moved,))
    pools = tuple(replace(each, roles=rest) if each.name == POOL.name else each for each in STAGE.pools)
    found = changes(staged(pools=(*pools, own)))
    assert found["pool own"].effect is Effect.NEW
    place = found[f"place of {moved.role}"]
    assert (place.effect, place.before, place.after) == (Effect.MOVE, POOL.name, "own")
    assert set(found) == {"pool own", f"place of {moved.role}"}


def test_new_and_gone_are_each_others_mirror() -> None:
    critic = next(role for role in STAGE.graph.roles if role.name == "critic")
    without = graphed(roles=tuple(role for role in STAGE.graph.roles if role is not critic))
    there, back = changes(without), changes(PLAN, without)
    assert (there["role critic"].effect, there["role critic"].reason) == (Effect.GONE, "gone_role")
    assert (back["role critic"].effect, back["role critic"].reason) == (Effect.NEW, "new_role")
    assert back["role critic"].span == critic.span
    assert there["role critic"].after is back["role critic"].before is None


def test_totals_have_both_figures() -> None:
    slower = replace(STAGE.estimate, step_seconds=3.0)
    found = diff(PLAN, staged(estimate=slower))
    step = next(each for each in found.totals if each.what == "step")
    assert (step.before, step.after, found.changes, found.differs) == (1.5, 3.0, (), True)
    text = render_diff(found)
    assert "1.50 s → 3.00 s" in text
    assert "+1.50 s (+100.0%)" in text


def test_a_role_of_two_names_and_lists_without_names() -> None:
    twice = [{"name": "a", "v": 1}, {"name": "a", "v": 2}]
    assert [leaf.path for leaf in leaves(twice, twice[:1], ("x",))] == [("x",)]
    (leaf,) = leaves({"a": [{"name": "b", "v": 1}]}, {"a": [{"name": "b", "v": 1}, {"name": "c", "v": 2}]})
    assert (leaf.path, leaf.before is MISSING) == (("a", "c"), True)
    (leaf,) = leaves([{"id": "a"}, {"id": "b"}], [{"id": "b"}, {"id": "a"}])
    assert leaf.path == ("(order)",)


def test_a_placement_that_is_added_to_is_told_at_its_most() -> None:
    """A field that no row knows restarts: `RolePlacement` and `Pool` fields of later versions are never missed."""
    for field in RolePlacement.__struct_fields__:
        if field == "role":
            continue
        value = getattr(ENTRY, field)
        other = Layout(dp=7) if isinstance(value, Layout) else (not value) if isinstance(value, bool) else "other"
        assert _entry(**{field: other}), field


@pytest.mark.parametrize(
    ("page", "structs"),
    [("plan-diff.md", (PlanDiff, Change, Total)), ("why-not.md", (WhyNot, Binding, Blame))],
)
def test_every_key_of_the_json_is_documented(page: str, structs: tuple[type[Any], ...]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for struct in structs:
        missing = [name for name in struct.__struct_fields__ if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)]
        assert missing == [], struct
    if Change in structs:
        assert all(f"`{name}`" in text for name in (*SECTIONS, *Effect))
