"""`include: [base.yaml, …]`: a flow or stage starts from other YAML files, which its own keys override.

Takes the tree of a file and the folder it lies in, gives the tree with the files merged under it: earlier files under
later ones, all of them under the file's own keys. A file may include others, relative to itself. Reads local text files
and executes nothing; what the files hold is told from what stands in the flow by its origin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Label, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.files import flow_names, normal_text, read_text
from flowrl.spec.flow import OriginKind
from flowrl.spec.presets import merge_flows
from flowrl.spec.tree import MARKS, Entry, MappingNode, ScalarNode, SequenceNode, walk
from flowrl.spec.yaml_tree import LARGEST_BYTES, LARGEST_NODES, read_yaml

KEY = "include"
DEEPEST = 8
"""Files that include one another in a row."""
MOST = 64
"""Files that one flow includes, counted as often as they are named."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(slots=True)
class Includes:
    """The files that a flow includes: their text by the name shown, and what they add up to."""

    text: dict[str, str] = field(default_factory=dict[str, str])
    count: int = 0
    bytes: int = 0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A file that is being read: its folder, and where each file on the way to it is asked for."""

    folder: str
    chain: Mapping[str, Span | None]
    """Real path → the place that asks for it; None for the flow itself."""


def apply_includes(root: MappingNode, file: str, folder: str, includes: Includes) -> MappingNode:
    """The tree without `include:`, its files merged in; those of stages too. Raises FlowError (FR0019 to FR0024)."""
    own: dict[str, Span | None] = {_real(file): None} if os.path.isfile(file) else {}
    return _expanded(root, _Place(folder, own), includes)


def _expanded(root: MappingNode, place: _Place, includes: Includes) -> MappingNode:
    root = _merged(root, place, includes)
    stages = root.entries.get("stages")
    if stages is None or not isinstance(stages.node, SequenceNode):
        return root
    items = tuple(_merged(i, place, includes) if isinstance(i, MappingNode) else i for i in stages.node.items)
    return root.with_entry(replace(stages, node=replace(stages.node, items=items)))


def _merged(node: MappingNode, place: _Place, includes: Includes) -> MappingNode:
    """One flow or stage over the files that it includes."""
    entry = node.entries.get(KEY)
    if entry is None:
        return node
    below: MappingNode | None = None
    for name in _names(entry):
        tree = _included(name, place, includes)
        below = tree if below is None else merge_flows(below, tree)
    own = node.without(KEY)
    return own if below is None else merge_flows(below, own)


def _names(entry: Entry) -> Iterator[ScalarNode]:
    """The file names as written."""
    if not isinstance(entry.node, SequenceNode):
        name = entry.node.value if isinstance(entry.node, ScalarNode) else "base.yaml"
        helps = [Help(text=f"write `include: [{name}]`")]
        raise FlowError(diagnose("FR0021", entry.node.span, helps=helps, problem="`include` takes a list of files"))
    for item in entry.node.items:
        if not isinstance(item, ScalarNode) or not isinstance(item.value, str) or not item.value.strip():
            raise FlowError(diagnose("FR0021", item.span, problem="this names no YAML file"))
        if item.kind is not OriginKind.PYTHON and any(mark in item.value for mark in MARKS):
            problem = "files are merged before variables are known, so a name takes no template"
            raise FlowError(diagnose("FR0021", item.span, problem=problem))
        yield item


def _included(name: ScalarNode, place: _Place, includes: Includes) -> MappingNode:
    path = _local(name, place)
    real = _real(path)
    if real in place.chain:
        raise FlowError(_cycle(name.span, real, place))
    if len(place.chain) > DEEPEST or includes.count >= MOST:
        limit = f"{DEEPEST} files in a row" if len(place.chain) > DEEPEST else f"{MOST} files"
        raise FlowError(diagnose("FR0022", name.span, limit=limit))
    text = _text(path, name.span, includes)
    try:
        tree = read_yaml(text, path, OriginKind.INCLUDE)
    except FlowError as error:
        raise FlowError(_from_here(each, name.span) for each in error.diagnostics) from None
    if not isinstance(tree, MappingNode):
        also = () if tree is None else (Label(tree.span, "this is what the file holds"),)
        problem = f"`{path}` is empty" if tree is None else f"`{path}` holds no mapping"
        raise FlowError(diagnose("FR0021", name.span, also=also, problem=problem))
    _count(tree, name.span, includes)
    deeper = _Place(os.path.dirname(path) or ".", {**place.chain, real: name.span})
    return _expanded(tree, deeper, includes)


def _local(name: ScalarNode, place: _Place) -> str:
    """The file's path, as it is shown; it must be a regular file of this machine."""
    written = str(name.value)
    if _SCHEME.match(written) is not None:
        raise FlowError(diagnose("FR0023", name.span, problem=f"`{written}` is an address"))
    path = os.path.normpath(os.path.join("" if place.folder == "." else place.folder, written))
    if os.path.isfile(path):
        return path
    if os.path.exists(path):
        what = "a folder" if os.path.isdir(path) else "no regular file"
        raise FlowError(diagnose("FR0023", name.span, problem=f"`{path}` is {what}"))
    near = near_names(os.path.basename(path), flow_names(Path(path).parent))
    beside = os.path.join(os.path.dirname(written), near[0]) if near else ""
    text = f"a file with a near name exists: `{beside}`"
    helps = [Respelt(text=text, span=name.span, old=written, new=beside)] if near else []
    raise FlowError(diagnose("FR0019", name.span, helps=helps, file=path))


def _text(path: str, span: Span, includes: Includes) -> str:
    try:
        text = normal_text(read_text(path))
    except FlowError as error:
        raise FlowError(_from_here(each, span) for each in error.diagnostics) from None
    includes.text[path] = text
    return text


def _count(tree: MappingNode, span: Span, includes: Includes) -> None:
    """Limits of one flow hold for it together with its files, however they are cut."""
    includes.count += 1
    includes.bytes += len(includes.text[tree.span.file])
    includes.nodes += sum(1 for _ in walk(tree))
    over = f"{LARGEST_BYTES:,} bytes" if includes.bytes > LARGEST_BYTES else ""
    over = f"{LARGEST_NODES:,} values" if includes.nodes > LARGEST_NODES else over
    if over:
        raise FlowError(diagnose("FR0024", span, limit=over))


def _from_here(fault: Diagnostic, span: Span) -> Diagnostic:
    """A fault of an included file, with the place that includes it."""
    labels = (*fault.labels, Label(span, "included here"))
    return Diagnostic(
        code=fault.code,
        severity=fault.severity,
        headline=fault.headline,
        labels=labels,
        why=fault.why,
        notes=fault.notes,
        helps=fault.helps,
    )


def _cycle(span: Span, real: str, place: _Place) -> Diagnostic:
    """The files of the circle, in the order in which they ask for one another."""
    names = list(place.chain)
    circle = names[names.index(real) :]
    asked = [place.chain[name] for name in circle[1:]]
    also = [Label(each, "by way of this") for each in asked if each is not None]
    way = " → ".join(f"`{os.path.basename(name)}`" for name in (*circle, real))
    return diagnose("FR0020", span, also=also, way=way)


def _real(path: str) -> str:
    return os.path.realpath(path)
