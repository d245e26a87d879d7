"""The placement section, what `assume:` says, and where every value came from → PlacementRequest.

Takes a FlowSpec and a stage; knows no cluster. Names of roles and pools are checked by placement, which has the graph.
"""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.compiler.lower.lengths import Counted, counted
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.span import Span
from flowrl.placement.request import STEP_TIME, Assumption, LayoutRequest, Mode, PlacementRequest, PoolRequest
from flowrl.spec.flow import FlowSpec, Origin, OriginKind
from flowrl.spec.schema import AssumeDocument, DistributionDocument, LengthDocument, PlacementDocument, PoolDocument


def lower_placement(spec: FlowSpec, index: int) -> PlacementRequest:
    """What stage `index` asks of placement."""
    stage = Stage(spec, index)
    placement, assume = stage.document.placement, stage.document.assume
    common = PlacementRequest(
        assume={id: _assumption(stage, id, document) for id, document in assume.items()},
        origins=_origins(spec, index),
        span=stage.written("placement"),
    )
    if not isinstance(placement, PlacementDocument):
        return replace(common, mode=Mode(placement))
    return replace(
        common,
        mode=Mode.POOLS if placement.pools else Mode.AUTO,
        pools=tuple(_pool(stage, name, pool) for name, pool in placement.pools.items()),
        pin=dict(placement.pin),
        pin_spans=stage.written_keys("placement", "pin", keys=placement.pin),
        apart=placement.apart,
        apart_spans=_each_span(stage, ("placement", "apart"), len(placement.apart)),
        objective=placement.objective or STEP_TIME,
        objective_span=stage.span("placement", "objective"),
        step_seconds_at_most=placement.step_seconds_at_most,
        at_most_span=stage.span("placement", "step_seconds_at_most"),
    )


def _pool(stage: Stage, name: str, pool: PoolDocument) -> PoolRequest:
    path = ("placement", "pools", name)
    return PoolRequest(
        name=name,
        gpus=pool.gpus,
        group=pool.group,
        roles=pool.roles,
        layouts={
            role: LayoutRequest(
                tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, span=stage.span(*path, "layouts", role)
            )
            for role, layout in pool.layouts.items()
        },
        span=stage.span(*path, "gpus"),
        group_span=stage.written(*path, "group"),
        role_spans=_role_spans(stage, path, pool.roles),
    )


def _each_span(stage: Stage, path: tuple[str, ...], count: int) -> tuple[Span, ...]:
    """Of each element of a list; none where it has no places, as in a flow written in Python."""
    found = [stage.span(*path, place) for place in range(count)]
    spans = [span for span in found if span is not None]
    return tuple(spans) if len(spans) == count else ()


def _role_spans(stage: Stage, path: tuple[str, ...], roles: tuple[str, ...]) -> dict[str, Span]:
    found = ((role, stage.span(*path, "roles", place)) for place, role in enumerate(roles))
    return {role: span for role, span in found if span is not None}


def _assumption(stage: Stage, id: str, document: AssumeDocument) -> Assumption:
    tokens, seconds = document.response_tokens, document.seconds
    span = stage.span("assume", id)
    found = counted(stage, id, tokens) if isinstance(tokens, LengthDocument) else Counted()
    lengths = found.lengths
    return Assumption(
        response_tokens=sum(lengths) / len(lengths) if lengths else _mean(tokens),
        response_lengths=lengths,
        response_rule=found.rule,
        response_tokens_p99=tokens.p99 if isinstance(tokens, LengthDocument) else None,
        seconds=_mean(seconds),
        seconds_p99=seconds.p99 if isinstance(seconds, DistributionDocument) else None,
        turns=_mean(document.turns),
        keep=document.keep,
        share=document.share,
        prompts=document.prompts,
        origin=f"assume {span}" if span is not None else "assume",
    )


def _mean(value: float | DistributionDocument | LengthDocument | None) -> float | None:
    return value.mean if isinstance(value, DistributionDocument | LengthDocument) else value


def _origins(spec: FlowSpec, index: int) -> dict[str, str]:
    """Dotted path within the stage → where the value came from, for everything that somebody wrote."""
    found: dict[str, str] = {}
    for path, origin in spec.origins.items():
        text = _origin_text(origin)
        if text is None:
            continue
        if path[:1] != ("stages",):
            found.setdefault(".".join(map(str, path)), text)
        elif len(path) > 2 and path[1] == index:
            found[".".join(map(str, path[2:]))] = text
    return found


def _origin_text(origin: Origin) -> str | None:
    if origin.kind is OriginKind.DEFAULT:
        return None
    span = origin.value or origin.key
    if origin.kind is OriginKind.PRESET and span is not None:
        return f"preset {span.file.removeprefix('preset:')}"
    if origin.kind is OriginKind.FLAG:
        return "flag --set"
    return str(span) if span is not None else None
