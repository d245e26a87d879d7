"""Plan × plan → PlanDiff: every difference of what runs, by its effect on a run of the first, and what it costs.

Places in sources, comments, the order of roles and ops, ledger lines and decisions do not count: a plan is compared by
what it means. Every other value does; effects.py says what each may do to a run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from flowrl.diag.span import Span
from flowrl.plan.changes import SECTIONS, Change, Effect, PlanDiff
from flowrl.plan.digests import meaning
from flowrl.plan.effects import PLAN, STAGE, UNSEEN, Row, row_of
from flowrl.plan.leaves import MISSING, Leaf, Path, leaves
from flowrl.plan.places import placement_changes
from flowrl.plan.plan import Plan, StagePlan
from flowrl.plan.totals import totals_of

_UNKNOWN = Row((), "program", Effect.RESTART, "other")
_KINDS = ("kind", "source", "method", "reason")
_HOW_IT_CAME = ("origin", "derived")
"""Of ops and edges: which pass or declared edge they came from. The digest of a flow leaves them out too."""
_FLOW_FILES = ("flow ", "include ")


def diff(before: Plan, after: Plan, names: tuple[str, str] = ("plan", "plan")) -> PlanDiff:
    """What the second plan changes of the first. `names` are those of the plans, for people."""
    before = _named_alike(before, after)
    inside = list(_of_stages(before, after))
    told = {(each.what, each.before, each.after) for each in inside}
    whole = [each for each in _of_plan(before, after) if (each.what, each.before, each.after) not in told]
    changes = [*whole, *inside, *_warnings(before, after)]
    moved = [name for name in ("flow", "cluster", "profile", "code") if _digest(before, name) != _digest(after, name)]
    return PlanDiff(
        before=names[0],
        after=names[1],
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        moved=tuple(moved),
        changes=tuple(sorted(dict.fromkeys(changes), key=lambda each: SECTIONS.index(each.section))),
        totals=totals_of(before, after),
    )


def _named_alike(before: Plan, after: Plan) -> Plan:
    """The first plan with its stage named as that of the second where neither flow has stages: their one stage has the
    flow's name, and another name makes no other stage of it."""
    if any(len(plan.stages) != 1 or plan.stages[0].name != plan.name for plan in (before, after)):
        return before
    return replace(before, stages=(replace(before.stages[0], name=after.name),))


def _digest(plan: Plan, name: str) -> object:
    return getattr(plan.digests, name)


def _of_plan(before: Plan, after: Plan) -> Iterator[Change]:
    one, other = _plan_part(before), _plan_part(after)
    for leaf in leaves(one, other):
        row = row_of(leaf.path, PLAN) or _UNKNOWN
        yield _change(leaf, row, _what_of_plan(leaf.path), _span_at(after, leaf.path))


def _plan_part(plan: Plan) -> dict[str, Any]:
    """What is of no one stage. Bytes of flow files do not count: what they say is compared itself."""
    sources = {f"{source.role} {source.path}": {"digest": source.digest} for source in plan.sources}
    return {
        "name": plan.name,
        "folder": plan.folder,
        "run": meaning(plan.run),
        "cluster": meaning(plan.cluster),
        "sources": {key: value for key, value in sources.items() if not key.startswith(_FLOW_FILES)},
        "stages": [{"name": stage.name} for stage in plan.stages],
    }


def _what_of_plan(path: Path) -> str:
    if path[:2] == ("cluster", "groups"):
        return " ".join(("group", ".".join(path[2:])))
    if path[0] == "sources":
        return path[1]
    return " ".join(("stage", path[1])) if path[0] == "stages" else ".".join(path)


def _of_stages(before: Plan, after: Plan) -> Iterator[Change]:
    theirs = {stage.name: stage for stage in after.stages}
    several = len(before.stages) > 1 or len(after.stages) > 1
    for stage in before.stages:
        if stage.name in theirs:
            name = stage.name if several else None
            for change in _moved_instructions(_of_stage(stage, theirs[stage.name])):
                yield replace(change, stage=name)


def _of_stage(before: StagePlan, after: StagePlan) -> Iterator[Change]:
    found = list(leaves(_stage_part(before), _stage_part(after)))
    lowered = {leaf.path[2] for leaf in found if leaf.path[:2] == ("graph", "edges") and len(leaf.path) > 2}
    told = {id for stage in (before, after) for edge in stage.graph.edges if edge.id in lowered for id in edge.origin}
    for leaf in found:
        path = leaf.path
        if path[-1] in _HOW_IT_CAME and path[-3:-2] in (("edges",), ("ops",), ("declared",)):
            continue
        if path[:2] == ("graph", "declared"):
            if len(path) > 2 and path[2] in told:
                continue
            path = ("graph", "edges", *path[2:])
        path = ("graph", *path) if path[0] == "edges" else path
        row = row_of(path, STAGE) or _UNKNOWN
        change = _change(leaf, row, _what_of_stage(path), _span_at(after, leaf.path))
        yield replace(change, pool=path[2]) if path[:2] == ("programs", "streams") and len(path) > 3 else change
    yield from placement_changes(before, after)


def _stage_part(stage: StagePlan) -> dict[str, Any]:
    plain = {name: meaning(getattr(stage, name)) for name in StagePlan.__struct_fields__ if name not in UNSEEN}
    plain["edges"] = sorted(plain["edges"], key=lambda edge: str(edge["id"]))  # as `meaning` has those of the graph
    syncs = [{"edge": each.edge, "transport": each.transport, "way": each.way} for each in stage.syncs]
    return {key: value for key, value in plain.items() if key != "name"} | {"syncs": syncs}


def _what_of_stage(path: Path) -> str:
    """`role critic`, `critic.engine.kv_fraction`, `actor_train.update.clip_low`, `a -> b: tokens`, an instruction."""
    match path:
        case ("graph", "models" | "roles" | "ops" as part, name):
            return f"{part[:-1]} {name}"
        case ("graph", "models", name, *rest):
            return ".".join(("models", name, *rest))
        case ("graph", "roles", name, *rest):
            return ".".join((name, *rest))
        case ("graph", "ops", name, "params", *rest) | ("graph", "ops", name, *rest):
            return ".".join((name, *rest))
        case ("graph", "edges", name) | ("programs", "channels", name) | ("graph", "removed", name):
            return name
        case ("graph", "edges", name, *rest) | ("programs", "channels", name, *rest) | ("syncs", name, *rest):
            return f"{name}: {'.'.join(rest)}"
        case ("programs", "streams", name):
            return f"stream {name}"
        case ("programs", "streams", name, "instructions", "(order)"):
            return f"order of {name}"
        case ("programs", "streams", _, "instructions", id, *rest):
            return f"{id}: {'.'.join(rest)}" if rest else id
        case ("graph", *rest):
            return ".".join(rest)
        case _:
            return ".".join(path)


def _change(leaf: Leaf, row: Row, what: str, span: Span | None) -> Change:
    is_new, is_gone = leaf.before is MISSING, leaf.after is MISSING
    effect, reason = row.effect, row.reason
    if (is_new or is_gone) and row.pattern and row.pattern[-1] != "**":
        effect = Effect.NEW if is_new else Effect.GONE
        reason = ("new_" if is_new else "gone_") + row.new if row.new != "new" else "new" if is_new else "gone"
    told = what if effect in (Effect.NEW, Effect.GONE) else ""
    return Change(
        section=row.section,
        effect=effect,
        what=what,
        reason=reason,
        before=None if is_new else _text(leaf.before, told),
        after=None if is_gone else _text(leaf.after, told),
        span=None if is_gone else span,
    )


def _text(value: Any, of: str) -> str:
    """A value for people; `of`: what is new or gone, of which the kind is enough."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        if "instructions" in named:
            return f"{len(named['instructions'])} instructions"
        kind = next((str(named[key]) for key in (*(_KINDS if of else ()), "slot", "name") if named.get(key)), None)
        if kind is not None:
            return f"{kind} of {named['model']}" if named.get("model") else kind
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if value is None:
        return "nothing"
    if isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value)):
        return ", ".join(cast("list[str]", value)) or "nothing"
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _span_at(value: object, path: Sequence[str]) -> Span | None:
    """Where the flow says what stands at `path`: of the nearest thing around it that knows a place."""
    found: Span | None = None
    for place, part in enumerate(path):
        found = _own_span(value, path[place:]) or found
        value = _inside(value, part)
        if value is None:
            break
    return _own_span(value, ()) or found


def _own_span(value: object, rest: Sequence[str]) -> Span | None:
    spans = getattr(value, "spans", None)
    keys = (".".join(rest[skip:]) for skip in (0, 1) if rest[skip:])
    places: dict[str, Span] = cast("dict[str, Span]", spans) if isinstance(spans, dict) else {}
    keyed = next((places[key] for key in keys if key in places), None)
    own = getattr(value, "span", None)
    return keyed or (own if isinstance(own, Span) else None)


def _inside(value: object, part: str) -> object:
    if isinstance(value, msgspec.Struct):
        return getattr(value, part, None)
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return next((each for each in items if part in (getattr(each, "id", None), getattr(each, "name", None))), None)
    return None


def _moved_instructions(changes: Iterator[Change]) -> Iterator[Change]:
    """An instruction that is gone in one pool and new in another has moved."""
    found = list(changes)
    gone = {each.what: each for each in found if each.reason == "gone_instruction"}
    new = {each.what for each in found if each.reason == "new_instruction"}
    for each in found:
        if each.reason == "gone_instruction" and each.what in new:
            continue
        if each.reason == "new_instruction" and each.what in gone:
            was = gone[each.what].pool
            yield replace(each, effect=Effect.MOVE, reason="moved", before=was, after=each.pool)
            continue
        yield each


def _warnings(before: Plan, after: Plan) -> Iterator[Change]:
    """Diagnostics by what they say, wherever it is written."""
    mine, theirs = _told(before), _told(after)
    for key in dict.fromkeys((*mine, *theirs)):
        if key not in theirs:
            yield Change(section="warnings", effect=Effect.GONE, what=key[0], reason="gone_warning", before=key[1])
        elif key not in mine:
            yield Change(
                section="warnings",
                effect=Effect.NEW,
                what=key[0],
                reason="new_warning",
                after=key[1],
                span=theirs[key],
            )


def _told(plan: Plan) -> dict[tuple[str, str], Span | None]:
    found: dict[tuple[str, str], Span | None] = {}
    for each in plan.diagnostics:
        label = each.labels[0].text if each.labels else next(iter(each.notes), "")
        found[each.code, f"{each.headline}: {label}" if label else each.headline] = (
            each.labels[0].span if each.labels else None
        )
    return found
