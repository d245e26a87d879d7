"""What an edge may join: the ends of weights edges and of interactions.

Takes a stage and its declared edges, adds to the stage's problems. Fields and what they bind to are left to the passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from flowrl.compiler.lower.edges import head_of, parse_name
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Help, Label, diagnose
from flowrl.graph.graph import Edge, EdgeKind, Kind
from flowrl.spec.schema import GeneratorRole, RoleDocument
from flowrl.spec.sections import LoraDocument

RECEIVERS = (Kind.GENERATOR, Kind.SCORER, Kind.REWARD)
"""Kinds of role that weights edges may enter; a reward only with a model of its own."""


def check_interactions(stage: Stage, declared: Sequence[Edge]) -> None:
    """FR0331 for `<->` between anything but generators and an environment's step, and for `->` at such a step; FR0332
    where both a reset and a data edge give a generator its first message."""
    worlds: dict[str, str] = {}
    for edge in declared:
        problem = _wrong_interaction(stage, edge, declared)
        if problem is None and edge.kind is EdgeKind.INTERACTION:
            other = worlds.setdefault(edge.source, edge.target)
            if other != edge.target:
                fix = "couple each call of a generator with one environment"
                problem = (f"`{edge.source}` already talks with `{other}`", fix)
        if problem is not None:
            stage.refuse("FR0331", edge.span, problem=problem[0], fix=problem[1])
    _check_first_messages(stage, declared)
    _check_resets(stage, declared)


def _wrong_interaction(stage: Stage, edge: Edge, declared: Sequence[Edge]) -> tuple[str, str] | None:
    """What is wrong and what to write, or None."""
    if edge.kind is EdgeKind.DATA:
        if _is_step(stage, edge.target):
            start = edge.source if _is_generate(stage, edge.source) else "GENERATOR.generate"
            return f"`{edge.target}` runs inside an interaction", f"write `- {start} <-> {edge.target}`"
        if _is_step(stage, edge.source):
            talking = [e.source for e in declared if e.kind is EdgeKind.INTERACTION and e.target == edge.source]
            start = talking[0] if talking else "GENERATOR.generate"
            return f"`{edge.source}` runs inside an interaction", f"write `- {start} -> {edge.target}`"
    if edge.kind is not EdgeKind.INTERACTION:
        return None
    if _is_generate(stage, edge.source) and _is_step(stage, edge.target):
        return None
    if _is_step(stage, edge.source) and _is_generate(stage, edge.target):
        return f"`{edge.source}` stands on the left", f"write `- {edge.target} <-> {edge.source}`"
    if not _is_generate(stage, edge.source):
        return f"`{edge.source}` is no generator's `generate`", "start it at a generator: `- GENERATOR.generate <-> …`"
    return f"`{edge.target}` is no environment's `step`", "end it at an environment: `… <-> ENV.step`"


def _check_first_messages(stage: Stage, declared: Sequence[Edge]) -> None:
    into: dict[str, list[Edge]] = defaultdict(list)
    for edge in declared:
        if edge.kind is EdgeKind.DATA:
            into[edge.target].append(edge)
    for edge in declared:
        name = parse_name(edge.target)
        if edge.kind is not EdgeKind.INTERACTION or name.method != "step":
            continue
        reset = f"{name.role}.reset" + ("" if name.label is None else f"@{name.label}")
        for other in into[edge.source] if into[reset] else ():
            first = into[reset][0]
            also = [Label(first.span, f"`{reset}` gives it one")] if first.span is not None else []
            stage.problems.append(
                diagnose("FR0332", other.span, also=also, generate=edge.source, reset=reset, edge=other.id)
            )


def _check_resets(stage: Stage, declared: Sequence[Edge]) -> None:
    """FR0331 for a reset whose episodes nothing goes on with: no step of its own call, and no edge from it."""
    used = {end for edge in declared for end in (edge.source, *([edge.target] if _is_step(stage, edge.target) else []))}
    told: set[str] = set()
    for edge in declared:
        name = parse_name(edge.target)
        if edge.kind is not EdgeKind.DATA or not _is(stage, edge.target, Kind.ENV, "reset") or edge.target in told:
            continue
        label = "" if name.label is None else f"@{name.label}"
        step = f"{name.role}.step{label}"
        if not {step, edge.target} & used:
            told.add(edge.target)
            problem = f"`{edge.target}` begins episodes that no `{step}` goes on with"
            stage.refuse("FR0331", edge.span, problem=problem, fix=f"write `- GENERATOR.generate{label} <-> {step}`")


def _is_step(stage: Stage, end: str) -> bool:
    return _is(stage, end, Kind.ENV, "step")


def _is_generate(stage: Stage, end: str) -> bool:
    return _is(stage, end, Kind.GENERATOR, "generate")


def _is(stage: Stage, end: str, kind: Kind, method: str) -> bool:
    if method not in end:
        return False
    name = parse_name(end)
    role = stage.document.roles.get(name.role)
    return role is not None and role.kind == kind and name.method == method


def check_weights(stage: Stage, declared: Iterable[Edge]) -> None:
    """FR0301 for weights edges that leave anything but an updated trainer or enter anything but its like; FR0333
    into a frozen generator; FR0335 where two trainers send weights to one role."""
    edges = tuple(declared)
    updated = {parse_name(e.target).role for e in edges if e.kind is EdgeKind.DATA and _is_update(e.target)}
    first: dict[str, Edge] = {}
    for edge in edges:
        if edge.kind is not EdgeKind.WEIGHTS:
            continue
        problem = next(_wrong_weights(stage, edge, updated), None)
        if problem is not None:
            stage.refuse("FR0301", edge.span, [Help(text=problem[1])], problem=problem[0], fix=problem[1])
            continue
        target = stage.document.roles[edge.target]
        if isinstance(target, GeneratorRole) and target.frozen:
            span = stage.written("roles", edge.target, "frozen")
            also = [Label(span, "it is said to keep its weights")] if span is not None else []
            stage.problems.append(diagnose("FR0333", edge.span, also=also, role=edge.target))
        other = first.setdefault(edge.target, edge)
        if other is not edge:
            also = [Label(other.span, f"`{other.source}` sends it weights")] if other.span is not None else []
            stage.problems.append(
                diagnose("FR0335", edge.span, also=also, role=edge.target, source=edge.source, other=other.source)
            )


def _is_update(end: str) -> bool:
    return parse_name(end).method == "update"


def _wrong_weights(stage: Stage, edge: Edge, updated: set[str]) -> Iterator[tuple[str, str]]:
    """What is wrong and what to do instead, the first cause first."""
    source, target = stage.document.roles[edge.source], stage.document.roles[edge.target]
    if source.kind != Kind.TRAINER:
        turned = target.kind == Kind.TRAINER and source.kind in RECEIVERS
        fix = f"turn it round: `{edge.target} => {edge.source}`" if turned else "start the edge at a trainer"
        yield f"`{edge.source}` is a {source.kind} and makes no weights", fix
    if target.kind not in RECEIVERS:
        yield f"`{edge.target}` is a {target.kind} and takes no weights", "end the edge at a generator"
    if getattr(target, "model", None) is None:
        yield f"`{edge.target}` is a {target.kind} without a model", "end the edge at a role with a model"
    if edge.source not in updated:
        yield f"no edge reaches `{edge.source}.update`", f"draw an edge to `{edge.source}.update`"
    if head_of(stage, source) != head_of(stage, target):
        heads = f"`{edge.source}` has head {head_of(stage, source)}, `{edge.target}` {head_of(stage, target)}"
        yield heads, "join roles with models of the same head"
    adapters = [_adapter(stage, role) for role in (source, target)]
    if adapters[1] is not None and adapters[0] != adapters[1]:
        trained = "trains none" if adapters[0] is None else "trains another"
        problem = f"`{edge.target}` has an adapter (`lora`), and `{edge.source}` {trained}"
        yield problem, f"let `{edge.target}` use the model `{getattr(source, 'model', None)}`"


def _adapter(stage: Stage, role: RoleDocument) -> LoraDocument | None:
    model = stage.document.models.get(getattr(role, "model", None) or "")
    return None if model is None else model.lora
