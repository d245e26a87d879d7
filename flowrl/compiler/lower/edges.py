"""Edges of the flow → declared edges, one for each pair of ends, and the calls that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Help
from flowrl.diag.span import Span
from flowrl.graph.graph import Edge, EdgeKind, Kind
from flowrl.graph.judges import is_inner, judge_method
from flowrl.graph.signatures import LOSSES, methods
from flowrl.spec.schema import EdgeDocument, RewardRole, RoleDocument, TrainerRole

_Check = Callable[[Stage, str, Span | None, set[str]], bool]
_DATA = "data."
HEADS = ("lm", "scalar", "denoiser")
KINDS = {"->": EdgeKind.DATA, "=>": EdgeKind.WEIGHTS, "<->": EdgeKind.INTERACTION}


@dataclass(frozen=True, slots=True)
class Name:
    """An end of a data edge: `role.method`, `role.method@label`, or `data.NAME` with role `data`."""

    text: str
    role: str
    method: str
    label: str | None


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call that edges name, at its first mention: where it is fed, else where it feeds."""

    name: Name
    span: Span | None
    derived: bool = False


def parse_name(text: str) -> Name:
    role, _, rest = text.partition(".")
    method, _, label = rest.partition("@")
    return Name(text, role, method, label or None)


def lower_edges(stage: Stage) -> tuple[tuple[Edge, ...], dict[str, CallSite]]:
    """The declared edges in the order written, and the calls at their ends by op id. Unknown names are reported once an
    end, and edges with such an end left out."""
    calls: set[str] = set()
    roles: set[str] = set()
    edges: list[Edge] = []
    for index, document in enumerate(stage.document.edges):
        check, known = (_check_role, roles) if document.arrow == "=>" else (_check_call, calls)
        good = {
            end
            for side, ends in (("sources", document.sources), ("targets", document.targets))
            for place, end in enumerate(ends)
            if (end in known and not end.startswith(_DATA))
            or _is_good(stage, end, ("edges", index, side, place), check, known)
        }
        edges += [edge for edge in _fanned(stage, index, document) if {edge.source, edge.target} <= good]
    return tuple(edges), _call_sites(stage, calls)


def _is_good(stage: Stage, end: str, path: tuple[str, int, str, int], check: _Check, known: set[str]) -> bool:
    span = stage.span(*path)
    return not _enters_data(stage, end, path[2], span) and check(stage, end, span, known)


def _enters_data(stage: Stage, end: str, side: str, span: Span | None) -> bool:
    """FR0260 for an edge that ends at a data set; as a name it may still be unknown."""
    name = parse_name(end)
    if side != "targets" or name.role != "data" or name.method not in stage.document.data:
        return False
    stage.refuse("FR0260", span, name=end)
    return True


def check_updates(stage: Stage, sites: Iterable[CallSite]) -> None:
    """FR0311 for a role that edges update by two calls."""
    first: dict[str, str] = {}
    for site in sites:
        name = site.name
        if name.method != "update" or name.role == "data":
            continue
        other = first.setdefault(name.role, name.text)
        if other != name.text:
            stage.refuse("FR0311", site.span, role=name.role, other=other)


def in_turns(stage: Stage, name: str) -> bool:
    """Whether a `<->` couples the role with another."""
    turns = (edge for edge in stage.document.edges if edge.arrow == "<->")
    return any(end.partition(".")[0] == name for edge in turns for end in (*edge.sources, *edge.targets))


def head_of(stage: Stage, role: RoleDocument) -> str | None:
    model = stage.document.models.get(getattr(role, "model", None) or "")
    return None if model is None else model.head


def _fanned(stage: Stage, index: int, document: EdgeDocument) -> list[Edge]:
    return [
        Edge(
            id=f"{source} {document.arrow} {target}",
            kind=KINDS[document.arrow],
            source=source,
            target=target,
            fields=document.fields or (),
            tokens=_tokens(stage, document),
            every_steps=document.every_steps,
            every_updates=document.every_updates,
            start_step=document.start_step,
            transport=document.transport,
            timeout_seconds=document.timeout_seconds,
            on_timeout=document.on_timeout,
            span=_span(stage, index, document, place, other),
        )
        for place, source in enumerate(document.sources)
        for other, target in enumerate(document.targets)
    ]


def _tokens(stage: Stage, document: EdgeDocument) -> int:
    """Weights carry 1 + max_lag versions at the start; other edges nothing."""
    if document.arrow != "=>":
        return 0
    return 1 + (stage.document.schedule.max_lag if document.max_lag is None else document.max_lag)


def _span(stage: Stage, index: int, document: EdgeDocument, source: int, target: int) -> Span | None:
    """Of the whole entry if it is one pair, else of the end that tells this pair from the entry's others."""
    if len(document.targets) > 1:
        return stage.span("edges", index, "targets", target)
    if len(document.sources) > 1:
        return stage.span("edges", index, "sources", source)
    return stage.span("edges", index)


def _check_role(stage: Stage, end: str, span: Span | None, known: set[str]) -> bool:
    if end in known:
        return True
    if end not in stage.document.roles:
        stage.refuse_name("FR0201", span, end, stage.document.roles)
        return False
    known.add(end)
    return True


def _check_call(stage: Stage, end: str, span: Span | None, known: set[str]) -> bool:
    name = parse_name(end)
    if end in known:
        return True
    if name.role == "data":
        good = _check_data(stage, name, span)
    elif name.role not in stage.document.roles:
        stage.refuse_name("FR0201", span, name.role, stage.document.roles)
        return False
    else:
        good = _check_method(stage, name, span)
    if good:
        known.add(end)
    return good


def _check_data(stage: Stage, name: Name, span: Span | None) -> bool:
    if name.method in stage.document.data and name.label is None:
        return True
    wrong = name.method if name.label is None else f"{name.method}@{name.label}"
    stage.refuse_name("FR0204", span, wrong, stage.document.data)
    return False


def _check_method(stage: Stage, name: Name, span: Span | None) -> bool:
    role = stage.document.roles[name.role]
    head = head_of(stage, role)
    known = methods(Kind(role.kind), head)
    if name.method in known:
        return True
    if is_inner(name.method) and isinstance(role, RewardRole) and role.judge is not None:
        judge = name.text.replace(f".{name.method}", f".{judge_method(name.method)}", 1)
        fix = f"name `{judge}`, which asks and reads the answers; delete an edge between the two"
        stage.refuse("FR0340", span, inner=name.text, caller=judge, fix=fix)
        return False
    of_head = f" with head {head}" if head is not None else ""
    owner = f"`{name.role}`, a {role.kind}{of_head},"
    others = [other for other in HEADS if other != head and name.method in methods(Kind(role.kind), other)]
    if head is None or not others:
        stage.refuse_name("FR0202", span, name.method, known, owner=owner)
    elif not _of_wrong_head(role, head):
        of_model = f"`{name.method}` needs a model with `head: {others[0]}`; with `head: {head}` the ops are "
        helps = [Help(text=of_model + ", ".join(sorted(known)))]
        stage.refuse("FR0202", span, helps, owner=owner, name=name.method, known=", ".join(sorted(known)))
    return False


def _of_wrong_head(role: RoleDocument, head: str) -> bool:
    """Whether the role's loss needs another head: then FR0218 tells the cause, and its ops are not told as well."""
    loss = LOSSES.get(role.update.loss) if isinstance(role, TrainerRole) else None
    return loss is not None and loss.head != head


def _call_sites(stage: Stage, known: set[str]) -> dict[str, CallSite]:
    """Every good end of a data edge or interaction, with its first mention as a target, else as a source."""
    places: dict[str, tuple[int, Span | None]] = {}
    for index, document in enumerate(stage.document.edges):
        if document.arrow == "=>":
            continue
        for rank, side, ends in ((0, "targets", document.targets), (1, "sources", document.sources)):
            for place, end in enumerate(ends):
                found = places.get(end)
                if found is None or rank < found[0]:
                    places[end] = (rank, stage.span("edges", index, side, place))
    return {end: CallSite(parse_name(end), span) for end, (_, span) in places.items() if end in known}
