"""YAML text → located tree. The only place that parses YAML; scalars have the types of the YAML 1.2 core schema.

Nothing is constructed: PyYAML gives events, an explicit stack makes nodes of them. So depth and size are bounded while
the text is read, aliases keep both of their places, and no tag can make an object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
from flowrl.diag.span import Span
from flowrl.spec.flow import OriginKind
from flowrl.spec.tree import Entry, MappingNode, Node, Plain, ScalarNode, SequenceNode

LARGEST_BYTES = 1 << 20
LARGEST_DEPTH = 64
MOST_REREAD = 5_000
"""Events of a text that libyaml refuses up to which Python's reader is asked for its words: it is slow."""
LONGEST_REREAD = 100_000
"""Characters, likewise: one long scalar is one event, and blank lines are none."""
LARGEST_NODES = 50_000
"""Values after aliases are followed."""

_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufeff\uff00-\ufffd\U00010000-\U0010ffff]")
"""What YAML forbids, and the line breaks that only YAML sees (NEL, LS, PS), which would shift every line number."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which an escape can make and no file can hold."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_NUMERIC = frozenset("+-.0123456789")
"""What a number starts with."""
_LONGEST_INT = 4000
"""Digits; Python refuses to read longer ones."""

_STR_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})


def typed(text: str) -> Plain:
    """An unquoted scalar by the YAML 1.2 core schema: 1e-6 is a number; on, off, yes and no are text."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] not in _NUMERIC or len(text) > _LONGEST_INT:
        return text
    if _INT.match(text):
        return int(text)
    if _BASED.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    special = _SPECIAL.match(text)
    if special is None:
        return text
    return float(f"{special.group(1) or ''}inf") if special.group(1) is not None else float("nan")


@dataclass(slots=True)
class _Frame:
    """A collection that is being read."""

    start: Any
    is_mapping: bool
    anchor: str | None
    flow: bool
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    merged: list[Node] = field(default_factory=list[Node])
    items: list[Node] = field(default_factory=list[Node])
    key: ScalarNode | None = None
    last_end: Any = None
    size: int = 1
    depth: int = 1


@dataclass(frozen=True, slots=True)
class _Anchor:
    node: Node
    size: int
    depth: int


class _Reader:
    """Makes a tree of events. Faults that leave the rest readable are collected in `diagnostics`."""

    def __init__(self, text: str, file: str, kind: OriginKind) -> None:
        self.text = text
        self.lines: list[str] | None = None
        self.file = file
        self.kind = kind
        self.stack: list[_Frame] = []
        self.anchors: dict[str, _Anchor | None] = {}
        self.total = 0
        self.documents = 0
        self.root: Node | None = None
        self.diagnostics: list[Diagnostic] = []

    def read(self, event: yaml.Event) -> None:
        if isinstance(event, ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._open(event)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._close(event)
        elif isinstance(event, AliasEvent):
            self._alias(event)
        elif isinstance(event, DocumentStartEvent):
            self._document(event)

    def _span(self, event: yaml.Event) -> Span:
        return self._between(event.start_mark, event.end_mark)

    def _between(self, start: Any, end: Any) -> Span:
        return Span(self.file, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _document(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            raise FlowError(diagnose("FR0010", self._span(event)))

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None and event.tag not in _STR_TAGS:
            self.diagnostics.append(
                diagnose("FR0014", self._span(event), tag=event.tag.replace("tag:yaml.org,2002:", "!!"))
            )

    def _open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        self._check_tag(event)
        if len(self.stack) >= LARGEST_DEPTH:
            raise FlowError(diagnose("FR0005", self._span(event), limit=LARGEST_DEPTH))
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self._count(1, event)
        is_mapping = isinstance(event, MappingStartEvent)
        self.stack.append(_Frame(event.start_mark, is_mapping, event.anchor, bool(event.flow_style)))

    def _count(self, size: int, event: yaml.Event) -> None:
        self.total += size
        if self.total > LARGEST_NODES:
            raise FlowError(diagnose("FR0006", self._span(event), limit=LARGEST_NODES))

    def _close(self, event: MappingEndEvent | SequenceEndEvent) -> None:
        frame = self.stack.pop()
        # A block collection ends where the next token starts; its text ends with its last value.
        end = event.end_mark if frame.flow or frame.last_end is None else frame.last_end
        span = self._between(frame.start, end)
        node: Node
        if frame.is_mapping:
            node = MappingNode(entries=self._with_merged(frame), span=span, kind=self.kind)
        else:
            node = SequenceNode(items=tuple(frame.items), span=span, kind=self.kind, flow=frame.flow)
        self._complete(node, frame.size, frame.depth, frame.anchor, end)

    def _scalar(self, event: ScalarEvent) -> None:
        self._check_tag(event)
        self._count(1, event)
        half = None if event.value.isascii() else LONE_SURROGATE.search(event.value)
        if half is not None:
            self.diagnostics.append(diagnose("FR0017", self._span(event), character=f"U+{ord(half.group()):04X}"))
        plain = event.style in (None, "") and event.tag is None
        value = typed(event.value) if plain else event.value
        node = ScalarNode(value=value, span=self._span(event), kind=self.kind, text=event.value, plain=plain)
        self._complete(node, 1, 0, event.anchor, event.end_mark)

    def _alias(self, event: AliasEvent) -> None:
        span = self._span(event)
        if event.anchor not in self.anchors:
            self.diagnostics.append(diagnose("FR0012", span, problem=f"no anchor `&{event.anchor}` stands above"))
            return self._complete(ScalarNode(value=None, span=span, kind=self.kind), 1, 0, None, event.end_mark)
        anchor = self.anchors[event.anchor]
        if anchor is None:
            raise FlowError(diagnose("FR0012", span, problem=f"`&{event.anchor}` would contain itself"))
        self._count(anchor.size, event)
        if len(self.stack) + anchor.depth > LARGEST_DEPTH:
            raise FlowError(diagnose("FR0005", span, limit=LARGEST_DEPTH))
        node = replace(anchor.node, span=span, anchor=anchor.node.anchor or anchor.node.span)
        return self._complete(node, anchor.size, anchor.depth, None, event.end_mark)

    def _complete(self, node: Node, size: int, depth: int, anchor: str | None, end: Any) -> None:
        if anchor is not None:
            self.anchors[anchor] = _Anchor(node, size, depth)
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        frame.size += size
        frame.depth = max(frame.depth, depth + 1)
        frame.last_end = end
        if not frame.is_mapping:
            frame.items.append(node)
        elif frame.key is None:
            frame.key = self._key(node)
        else:
            self._entry(frame, frame.key, node)
            frame.key = None

    def _key(self, node: Node) -> ScalarNode:
        if isinstance(node, ScalarNode) and node.text:
            return node
        from flowrl.spec.yaml_errors import unquoted_template

        if self.lines is None:
            self.lines = self.text.split("\n")
        row = self.lines[node.span.line - 1]
        self.diagnostics.append(unquoted_template(row, node.span) or diagnose("FR0013", node.span))
        return ScalarNode(value="", span=node.span, kind=self.kind)

    def _entry(self, frame: _Frame, key: ScalarNode, node: Node) -> None:
        if key.plain and key.text == "<<":
            frame.merged += self._merge_sources(node)
            return
        earlier = frame.entries.get(key.text)
        if earlier is not None and key.text:
            first = Label(earlier.key_span, "written here first")
            self.diagnostics.append(diagnose("FR0011", key.span, also=(first,), key=key.text))
        frame.entries[key.text] = Entry(key.text, key.span, node, self.kind)

    def _merge_sources(self, node: Node) -> list[Node]:
        sources: list[Node] = list(node.items) if isinstance(node, SequenceNode) else [node]
        for source in sources:
            lost = any(each.code == "FR0012" and each.labels[0].span == source.span for each in self.diagnostics)
            if not isinstance(source, MappingNode) and not lost:
                self.diagnostics.append(diagnose("FR0016", source.span))
        return sources

    def _with_merged(self, frame: _Frame) -> dict[str, Entry]:
        """Own keys win over merged ones, earlier merged mappings over later ones."""
        entries = dict(frame.entries)
        for source in frame.merged:
            if isinstance(source, MappingNode):
                brought = {key: replace(entry, merged=source.span) for key, entry in source.entries.items()}
                entries = {**brought, **entries}
        return entries


def read_yaml(text: str, file: str, kind: OriginKind = OriginKind.FILE) -> Node | None:
    """The tree of one document; None if the text has none. Raises FlowError (FR00)."""
    if len(text.encode("utf-8", "surrogatepass")) > LARGEST_BYTES:
        raise FlowError(diagnose("FR0004", file=file, limit=f"{LARGEST_BYTES:,} bytes"))
    bad = _NOT_TEXT.search(text)
    if bad is not None:
        raise FlowError(_control_character(text, bad.start(), file))
    # libyaml is ten times faster; a text that it refuses is read again in Python, which has the better words.
    fast: Any = getattr(yaml, "CSafeLoader", None)
    refused: yaml.YAMLError | None = None
    if fast is not None:
        try:
            return _read(text, file, kind, fast)
        except yaml.YAMLError as error:
            refused = error
    try:
        if refused is not None and len(text) > LONGEST_REREAD:
            raise _in_words(text[:LONGEST_REREAD], file, kind, refused)
        return _read(text, file, kind, yaml.SafeLoader, refused)
    except yaml.YAMLError as error:
        from flowrl.spec.yaml_errors import syntax_error

        raise FlowError(syntax_error(error, text, file)) from None


def _in_words(start: str, file: str, kind: OriginKind, refused: yaml.YAMLError) -> yaml.YAMLError:
    """What Python's reader says of the start of a long text; what libyaml said, if the fault is not in it."""
    if _fault_at(refused) >= len(start):
        return refused
    try:
        _read(start, file, kind, yaml.SafeLoader, refused)
    except yaml.YAMLError as error:
        return refused if _fault_at(error) >= len(start) else error
    return refused


def _fault_at(error: yaml.YAMLError) -> int:
    """Characters before the fault that a loader tells."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return 0 if mark is None else mark.index


def _control_character(text: str, at: int, file: str) -> Diagnostic:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return diagnose("FR0017", Span(file, line, column, line, column + 1), character=f"U+{ord(text[at]):04X}")


def _read(text: str, file: str, kind: OriginKind, loader: Any, refused: yaml.YAMLError | None = None) -> Node | None:
    """`refused`: what another loader said, raised where the fault lies too far behind for a slow one."""
    reader = _Reader(text, file, kind)
    for count, event in enumerate(yaml.parse(text, Loader=loader)):
        if refused is not None and count > MOST_REREAD:
            raise refused
        reader.read(event)
    if reader.diagnostics:
        raise FlowError(dict.fromkeys(reader.diagnostics))
    return reader.root
