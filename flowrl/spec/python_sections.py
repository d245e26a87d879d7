"""The tree that the Python front door grows: what a flow and a stage hold, each value with the place of its call.

Knows sections, names and edges, and no kind of role; the calls that users make are in builder.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Label, diagnose
from flowrl.diag.span import Span
from flowrl.spec.call_site import CallSite, call_site
from flowrl.spec.functions import UnnameableError, function_name
from flowrl.spec.handles import Batch, Column, DataSet, Joined, ModelHandle, RoleHandle
from flowrl.spec.python_tree import PYTHON, entry, mapping, node_of
from flowrl.spec.tree import MappingNode, Node, ScalarNode, SequenceNode, descend, merge


@dataclass(frozen=True, slots=True)
class Gathered:
    """Keys of a block that were given directly, with the block itself if it was given too."""

    block: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flat: Mapping[str, Any] = field(default_factory=dict[str, Any])


def gathered(keys: Mapping[str, Any], block: str, names: frozenset[str]) -> dict[str, Any]:
    """`keys`, those in `names` moved into `block`."""
    flat = {key: value for key, value in keys.items() if key in names}
    rest = {key: value for key, value in keys.items() if key not in names and key != block}
    if not flat and block not in keys:
        return rest
    return {**rest, block: Gathered(keys.get(block, {}), flat)}


class PythonSections:
    """A mapping of sections under a name, and how calls add to it."""

    def __init__(self, name: str, use: str | None, folder: str, report: list[Diagnostic]) -> None:
        self.name = name
        self.folder = folder
        self._report = report
        site = call_site()
        self._root = mapping(site.span, [entry("name", site.key("name"), self._node(name, site.value(0)))])
        if use is not None:
            place = site.values.get("use", site.value(1))
            self._put(("use",), site.key("use"), self._node(use, place))

    def node(self) -> MappingNode:
        return self._root

    def _section(self, key: str, site: CallSite, whole: str | None, keys: Mapping[str, Any]) -> None:
        """A section as one word, or more keys of it."""
        node = self._mapping(site, keys, {}) if whole is None else self._node(whole, site.value(0))
        self._put((key,), site.span, node)

    def _add(
        self, path: tuple[str, ...], site: CallSite, keys: Mapping[str, Any], positions: Mapping[str, int]
    ) -> None:
        """A new named entry: its name is the last of `path`."""
        entries = descend(self._root, path[:-1])
        first = entries.entries.get(path[-1]) if isinstance(entries, MappingNode) else None
        if first is not None:
            also = (Label(first.key_span, "the first"),)
            self._report.append(diagnose("FR0125", site.value(0), also=also, what=_WORDS[path[-2]], name=path[-1]))
        self._put(path, site.value(0), self._mapping(site, keys, positions))

    def _mapping(self, site: CallSite, keys: Mapping[str, Any], positions: Mapping[str, int]) -> MappingNode:
        """Keys with their places; those gathered into a block keep the places of the arguments."""

        def place(key: str) -> Span:
            return site.values.get(key) or site.value(positions.get(key, -1))

        def node(key: str, value: Any) -> Node:
            if not isinstance(value, Gathered):
                return self._node(value, place(key))
            inner = [entry(name, site.key(name), node(name, item)) for name, item in value.flat.items()]
            return merge(self._node(value.block, place(key)), mapping(site.span, inner))

        return mapping(site.span, [entry(key, site.key(key), node(key, value)) for key, value in keys.items()])

    def _node(self, value: Any, span: Span) -> Node:
        def spelled(other: Any) -> str:
            if isinstance(other, ModelHandle | RoleHandle | DataSet | Column):
                return other.name
            if isinstance(other, Batch):
                return other.source
            try:
                return function_name(other, self.folder)
            except UnnameableError as error:
                self._report.append(diagnose("FR0126", span, problem=str(error)))
                return ""

        return node_of(value, span, spelled)

    def _put(self, path: tuple[str, ...], key_span: Span, node: Node) -> None:
        """Merge `node` into the tree at `path`."""
        for key in reversed(path):
            node = mapping(node.span, [entry(key, key_span, node)])
        merged = merge(self._root, node)
        assert isinstance(merged, MappingNode)
        self._root = mapping(self._root.span, list(merged.entries.values()))

    def _append(self, key: str, site: CallSite, items: Sequence[Node]) -> None:
        """More items of a list."""
        before = self._root.get(key)
        already = before.items if isinstance(before, SequenceNode) else ()
        self._put((key,), site.span, SequenceNode(items=(*already, *items), span=site.span, kind=PYTHON))

    def _edge(self, site: CallSite, text: str, attributes: Mapping[str, Any], written: Span | None = None) -> None:
        """An edge; `written` is the place of its text where a user spelt it."""
        edge: Node = ScalarNode(value=text, span=site.span, kind=PYTHON, plain=False)
        if written is not None:
            edge = self._node(text, written)
        if attributes:
            edge = mapping(site.span, [entry("edge", site.span, edge)])
            edge = merge(edge, self._mapping(site, attributes, {}))
        self._append("edges", site, [edge])

    def _flat(self, site: CallSite, given: Sequence[Batch | Joined]) -> list[Batch]:
        """Batches with joined ones apart; what is none, or of another flow, is reported (FR0127)."""
        flat: list[Any] = [batch for item in given for batch in (item.batches if isinstance(item, Joined) else (item,))]
        batches = [batch for batch in flat if isinstance(batch, Batch)]
        for other in flat:
            if not isinstance(other, Batch):
                self._fault(site, _no_batch(other))
        self._own(site, *batches)
        return batches

    def _own(self, site: CallSite, *handles: Batch | RoleHandle) -> None:
        for handle in handles:
            if handle.owner is not self:
                name = handle.source if isinstance(handle, Batch) else handle.name
                self._fault(site, f"`{name}` belongs to another flow or stage")

    def _fault(self, site: CallSite, problem: str) -> None:
        self._report.append(diagnose("FR0127", site.span, problem=problem))


_WORDS: Mapping[str, str] = {
    "models": "model",
    "roles": "role",
    "data": "data set",
    "pools": "pool",
    "groups": "group of nodes",
}
"""What an entry of a section is called."""


def _no_batch(given: Any) -> str:
    """What stands where a batch belongs, in the user's words."""
    if isinstance(given, RoleHandle):
        return f"`{given.name}` is a role; give what one of its ops gave"
    what = f"the text {given!r}" if isinstance(given, str) else f"a value of type {type(given).__name__}"
    return f"{what} is not what an op or a data set gives"
