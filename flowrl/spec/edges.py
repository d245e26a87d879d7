"""Edges: arrow strings → ends with their places; edges written again add attributes; removed ones go.

Takes the `edges` list of the tree (presets first), gives it back with one mapping {sources, arrow, targets, …} an edge,
which the schema then checks. An edge is identified by one source, the arrow and one target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Label, diagnose
from flowrl.diag.near import edit_distance
from flowrl.diag.span import Span
from flowrl.spec.limits import MOST_EDGES
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, subspan

_ARROWS = ("->", "=>", "<->")
_ARROW_LIKE = re.compile(r"<?[-=~]+>|<[-=~]+|>>|[→⟶➜⇒⟹↔⇄]")
_RIGHT_ARROWS: Mapping[str, str] = dict.fromkeys(("<-->", "<=>", "↔", "⇄"), "<->") | dict.fromkeys("⇒⟹", "=>")
_HALF_ARROW = re.compile(r"\s+-\s*|\s*>\s*")
_END = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*(@[A-Za-z_][\w-]*)?)?\Z")

_ONLY_OPS: Mapping[str, str] = {
    "actor_infer": "generate",
    "reference": "log_probs",
    "reward": "score",
    "advantage": "estimate",
}
"""The op of roles that have their kind by name and one op."""

_COMMON = ("every_steps", "start_step", "timeout_seconds", "on_timeout", "remove")
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "->": (*_COMMON, "fields"),
    "=>": (*_COMMON, "every_updates", "transport", "max_lag"),
    "<->": ("timeout_seconds", "on_timeout", "remove"),
}
"""Which attributes an edge of each arrow takes."""

_PUBLISHING = ("every_steps", "every_updates")
"""Two ways of saying when a version is published, of which an edge takes one."""

ALL_ATTRIBUTES: tuple[str, ...] = tuple(dict.fromkeys(name for names in ATTRIBUTES.values() for name in names))

FARTHEST = 4
"""Edits between an edge and one that may have been meant."""
LONGEST_COMPARED = 200
MOST_COMPARED = 500
MOST_HELPED = 20
"""Characters, edges and faults up to which a near edge is looked for: each comparison takes time for its letters."""

Pair = tuple[str, str, str]
"""Source, arrow, target."""


@dataclass(frozen=True, slots=True)
class _End:
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class _Written:
    """One entry of the list."""

    sources: tuple[_End, ...]
    arrow: str
    targets: tuple[_End, ...]
    attributes: dict[str, Entry]
    node: Node

    def pairs(self) -> Iterator[Pair]:
        return ((source.text, self.arrow, target.text) for source in self.sources for target in self.targets)

    @property
    def removes(self) -> bool:
        entry = self.attributes.get("remove")
        return entry is not None and isinstance(entry.node, ScalarNode) and entry.node.value is True


def resolve_edges(node: Node, report: list[Diagnostic]) -> Node:
    """The list with every entry parsed and same edges made one. Malformed ones are reported (FR0110 to FR0113)."""
    if not isinstance(node, SequenceNode):
        return node
    written = [edge for index in range(len(node.items)) if (edge := _parse_entry(node, index, report)) is not None]
    attributes: dict[Pair, dict[str, Entry]] = {}
    home: dict[Pair, int] = {}
    _check_count(written)
    for index, edge in enumerate(written):
        if edge.removes:
            _remove(edge, attributes, home, report)
            continue
        for pair in edge.pairs():
            earlier = attributes.get(pair, {})
            attributes[pair] = {**earlier, **edge.attributes}
            home.setdefault(pair, index)
            if not set(_PUBLISHING) <= set(edge.attributes):  # else told already
                _check_publishing(attributes[pair], _fresh(earlier, edge.attributes), report)
    items = [item for index, edge in enumerate(written) for item in _emit(edge, index, attributes, home)]
    return replace(node, items=tuple(items))


def _check_count(written: Sequence[_Written]) -> None:
    """Raises FlowError FR0030 at the entry that makes too many edges."""
    total = 0
    for edge in written:
        total += len(edge.sources) * len(edge.targets)
        if total > MOST_EDGES:
            raise FlowError(diagnose("FR0030", edge.node.span, limit=MOST_EDGES))


def _remove(
    edge: _Written, attributes: dict[Pair, dict[str, Entry]], home: dict[Pair, int], report: list[Diagnostic]
) -> None:
    for pair in edge.pairs():
        if pair in attributes:
            del attributes[pair], home[pair]
            continue
        near = _near_edge(pair, attributes) if len(report) < MOST_HELPED else None
        helps = [Help(text=f"an edge like it exists: `{near}`")] if near is not None else []
        report.append(diagnose("FR0113", edge.node.span, helps=helps, edge=_text(pair)))


def _near_edge(pair: Pair, known: Iterable[Pair]) -> str | None:
    """The edge that may have been meant: of those about as long, the nearest. Very long ones are not compared."""
    text = _text(pair)
    if len(text) > LONGEST_COMPARED:
        return None
    others = [other for other in map(_text, known) if abs(len(other) - len(text)) <= FARTHEST][:MOST_COMPARED]
    near = min(others, key=lambda other: edit_distance(text, other), default=None)
    return near if near is not None and edit_distance(text, near) <= FARTHEST else None


def _text(pair: Pair) -> str:
    return f"{pair[0]} {pair[1]} {pair[2]}"


def _emit(
    edge: _Written, index: int, attributes: dict[Pair, dict[str, Entry]], home: dict[Pair, int]
) -> Iterator[MappingNode]:
    """The entry as written if all of its pairs are still alike, else one edge for each pair that is left."""
    own = [pair for pair in edge.pairs() if home.get(pair) == index]
    if not own:
        return
    whole = len(own) == len(edge.sources) * len(edge.targets)
    if whole and all(attributes[pair] == attributes[own[0]] for pair in own):
        yield _edge_node(edge, edge.sources, edge.targets, attributes[own[0]])
        return
    ends = {end.text: end for end in (*edge.sources, *edge.targets)}
    for source, arrow, target in own:
        yield _edge_node(edge, (ends[source],), (ends[target],), attributes[source, arrow, target])


def _edge_node(
    edge: _Written, sources: tuple[_End, ...], targets: tuple[_End, ...], attributes: dict[str, Entry]
) -> MappingNode:
    span, kind = edge.node.span, edge.node.kind

    def entry(key: str, node: Node) -> Entry:
        return Entry(key, span, node, kind)

    def ends(some: tuple[_End, ...]) -> SequenceNode:
        items = tuple(ScalarNode(value=end.text, span=end.span, kind=kind, text=end.text) for end in some)
        return SequenceNode(items=items, span=span, kind=kind)

    made = {
        "sources": entry("sources", ends(sources)),
        "arrow": entry("arrow", ScalarNode(value=edge.arrow, span=span, kind=kind)),
        "targets": entry("targets", ends(targets)),
    }
    kept = {key: value for key, value in attributes.items() if key != "remove"}
    return MappingNode(entries={**made, **kept}, span=span, kind=kind, anchor=edge.node.anchor)


def _parse_entry(edges: SequenceNode, index: int, report: list[Diagnostic]) -> _Written | None:
    node = edges.items[index]
    attributes: dict[str, Entry] = {}
    text: Node | None = node
    if isinstance(node, MappingNode):
        text = node.get("edge")
        attributes = node.without("edge").entries
        if text is None:
            fixed = _colon_for_arrow(node)
            words = f"write `- {fixed}`" if fixed else 'write `{edge: "a.op -> b.op"}`, its attributes beside it'
            helps = [Help(text=words)]
            problem = "`:` makes a key and a value of it" if fixed else "a long edge has the key `edge`"
            report.append(diagnose("FR0110", node.span, helps=helps, problem=problem))
            return None
    if not isinstance(text, ScalarNode) or not isinstance(text.value, str):
        helps = _out_of_brackets(text)
        span = (text or node).span
        report.append(diagnose("FR0110", span, helps=helps, problem='an edge is text such as "a.op -> b.op"'))
        return None
    if isinstance(node, ScalarNode) and edges.flow and _ARROW_LIKE.search(text.value) is None:
        report.append(_unquoted(edges, index, text))
        return None
    parsed = _parse_arrow(text, text.value, report)
    if parsed is None:
        return None
    edge = _Written(*parsed, attributes=attributes, node=node if text is node else replace(node, anchor=text.anchor))
    _check_attributes(edge, report)
    return edge


def _out_of_brackets(node: Node | None) -> list[Help]:
    """For an edge that stands in brackets of its own."""
    if not isinstance(node, SequenceNode) or not all(isinstance(item, ScalarNode) for item in node.items):
        return []
    text = ", ".join(str(item.value) for item in node.items if isinstance(item, ScalarNode))
    return [Help(text=f"write it without the brackets: `- {text}`")] if _ARROW_LIKE.search(text) else []


def _colon_for_arrow(node: MappingNode) -> str | None:
    """`a.op -> b.op` for an entry `a.op: b.op`, which YAML reads as a key with a value."""
    if len(node.entries) != 1:
        return None
    (entry,) = node.entries.values()
    target = entry.node.value if isinstance(entry.node, ScalarNode) else None
    if not isinstance(target, str) or _END.match(entry.key.partition(",")[0].strip()) is None:
        return None
    both = "." in entry.key and "." in target
    return f"{entry.key} {'->' if both else '=>'} {target}" if both or "." not in entry.key + target else None


def _unquoted(edges: SequenceNode, index: int, text: ScalarNode) -> Diagnostic:
    """A comma that was meant to join ends has ended the entry."""
    following = edges.items[index + 1] if index + 1 < len(edges.items) else None
    preceding = edges.items[index - 1] if index else None
    parts = [str(text.value)]
    if isinstance(following, ScalarNode) and _ARROW_LIKE.search(str(following.value)):
        parts.append(str(following.value))
    elif isinstance(preceding, ScalarNode):
        parts.insert(0, str(preceding.value))
    quoted = Help(text=f'quote it: "{", ".join(parts)}"')
    return diagnose("FR0111", text.span, helps=[quoted], text=text.value)


def _parse_arrow(
    node: ScalarNode, text: str, report: list[Diagnostic]
) -> tuple[tuple[_End, ...], str, tuple[_End, ...]] | None:
    arrows = list(_ARROW_LIKE.finditer(text))
    wrong = next((found for found in arrows if found.group() not in _ARROWS), None)
    if not arrows or wrong is not None:
        report.append(_no_arrow(node, text, wrong))
        return None
    if len(arrows) > 1:
        span = subspan(node, arrows[1].start(), arrows[1].end())
        report.append(diagnose("FR0110", span, problem="a second arrow; write one edge for each"))
        return None
    arrow = arrows[0]
    swapped = _other_arrow(node, text, arrow)
    if swapped is not None:
        report.append(swapped)
        return None
    found = len(report)
    sources = _ends(node, text, 0, arrow.start(), arrow.group(), report)
    targets = _ends(node, text, arrow.end(), len(text), arrow.group(), report)
    return (sources, arrow.group(), targets) if len(report) == found else None


def _no_arrow(node: ScalarNode, text: str, wrong: re.Match[str] | None) -> Diagnostic:
    if wrong is None:
        helps = [Help(text=f"write `{_HALF_ARROW.sub(' -> ', text)}`")] if len(_HALF_ARROW.findall(text)) == 1 else []
        problem = "no arrow: `->` carries data, `=>` weights, `<->` turns"
        return diagnose("FR0110", node.span, helps=helps, problem=problem)
    right = _RIGHT_ARROWS.get(wrong.group(), "=>" if wrong.group() == ">>" or "=" in wrong.group() else "->")
    fixed = f"{text[: wrong.start()]}{right}{text[wrong.end() :]}"
    if wrong.group().startswith("<") and not wrong.group().endswith(">"):
        fixed = f"{text[wrong.end() :].strip()} {right} {text[: wrong.start()].strip()}"
    helps = [Help(text=f"write `{fixed}`")]
    span = subspan(node, wrong.start(), wrong.end())
    return diagnose("FR0110", span, helps=helps, problem=f"`{wrong.group()}` is not an arrow")


def _other_arrow(node: ScalarNode, text: str, arrow: re.Match[str]) -> Diagnostic | None:
    """FR0110 where all ends are of the kind that another arrow takes: then the arrow is at fault, not each end."""
    left, right = text[: arrow.start()], text[arrow.end() :]
    names = [name.strip() for side in (left, right) for name in side.split(",")]
    if any(_END.match(name) is None for name in names) or len({"." in name for name in names}) > 1:
        return None
    bare = "." not in names[0]
    if bare is (arrow.group() == "=>"):
        return None
    roles = ", ".join(dict.fromkeys(name.strip().partition(".")[0] for name in left.split(",")))
    receivers = ", ".join(dict.fromkeys(name.strip().partition(".")[0] for name in right.split(",")))
    weights = Help(text=f"weights: write `{roles} => {receivers}`")
    data = Help(text=f"data: write `{left.strip()} -> {right.strip()}`")
    if bare:
        kind = "data between ops" if arrow.group() == "->" else "turns between ops"
        problem, helps = f"`{arrow.group()}` carries {kind}, and these ends are roles", [weights]
    else:
        problem = "`=>` carries weights between roles, and these ends are ops"
        helps = [data] if names[0].startswith("data.") else [weights, data]
    return diagnose("FR0110", subspan(node, arrow.start(), arrow.end()), helps=helps, problem=problem)


def _ends(node: ScalarNode, text: str, start: int, stop: int, arrow: str, report: list[Diagnostic]) -> tuple[_End, ...]:
    ends: dict[str, _End] = {}
    at = start
    for part in text[start:stop].split(","):
        name = part.strip()
        first = at + len(part) - len(part.lstrip())
        at += len(part) + 1
        span = subspan(node, first, first + len(name)) if name else subspan(node, min(first, len(text)), first + 1)
        problem = _end_problem(name, arrow)
        if problem is not None:
            report.append(diagnose("FR0110", span, problem=problem))
        elif name in ends:
            report.append(diagnose("FR0110", span, problem=f"`{name}` again on this side of the arrow"))
        else:
            ends[name] = _End(name, span)
    return tuple(ends.values())


def _end_problem(name: str, arrow: str) -> str | None:
    if not name:
        return "a name is missing here"
    if _END.match(name) is None:
        return "an end is `role.op`, `role.op@label` or `data.NAME`" if arrow != "=>" else "an end of `=>` is a role"
    if arrow == "=>" and "." in name:
        return f"weights travel between roles: write `{name.partition('.')[0]}`"
    if arrow != "=>" and "." not in name:
        what = "data travels" if arrow == "->" else "turns pass"
        return f"{what} between ops: write `{name}.{_ONLY_OPS.get(name, 'OP')}`"
    return None


def _check_attributes(edge: _Written, report: list[Diagnostic]) -> None:
    allowed = ATTRIBUTES[edge.arrow]
    for key, entry in edge.attributes.items():
        if key in ALL_ATTRIBUTES and key not in allowed:
            fit = " and ".join(f"`{arrow}`" for arrow, names in ATTRIBUTES.items() if key in names)
            problem, rule = f"`{key}` on an edge `{edge.arrow}`", f"`{key}` is for edges {fit}"
            report.append(diagnose("FR0112", entry.key_span, problem=problem, rule=rule))
    _check_publishing(edge.attributes, tuple(edge.attributes), report)


def _check_publishing(attributes: Mapping[str, Entry], fresh: Sequence[str], report: list[Diagnostic]) -> None:
    """FR0112 for both ways of publishing on one edge, at the one that was written last (of `fresh`)."""
    if not set(_PUBLISHING) <= attributes.keys() or not set(_PUBLISHING) & set(fresh):
        return
    last = next(key for key in reversed(_PUBLISHING) if key in fresh)
    other = next(key for key in _PUBLISHING if key != last)
    also = (Label(attributes[other].key_span, "the other"),)
    rule = "weights are published by steps or by optimizer updates, not by both"
    problem = f"`{last}` beside `{other}`"
    report.append(diagnose("FR0112", attributes[last].key_span, also=also, problem=problem, rule=rule))


def _fresh(earlier: Mapping[str, Entry], own: Mapping[str, Entry]) -> tuple[str, ...]:
    """The keys that an entry adds to those of the same edge above it."""
    return tuple(key for key in own if key not in earlier)
