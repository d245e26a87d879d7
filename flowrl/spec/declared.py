"""Values of keys that packages declare: whether they have the type that their package gives them, at their place.

Takes the tree of a flow whose variables are rendered. What a package may declare is in package_keys.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.spec.flow import Path
from flowrl.spec.package_keys import DeclarationError, Keys, PackageKey, keys_of, known_keys
from flowrl.spec.roles import DEFAULT_KINDS
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, descend, plain_value
from flowrl.spec.types import found

UNUSABLE = "FR0140"

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list[int]": "a list of whole numbers",
    "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
    "dict": "a mapping",
}


def check_package_keys(root: MappingNode) -> Iterator[Diagnostic]:
    """Declarations that cannot be used (FR0140) and values of another type than the package says (FR0102, FR0105)."""
    for role in _roles(root):
        backend = _scalar(role.node, "backend")
        if not isinstance(role.node, MappingNode) or backend is None:
            continue
        try:
            keys = keys_of(_kind(role), str(backend.value))
        except DeclarationError as error:
            helps = [Help(text=error.rule)] if error.rule else []
            yield diagnose(UNUSABLE, backend.span, helps=helps, problem=str(error))
            continue
        for block, entry in role.node.entries.items():
            yield from _block(entry.node, keys, block.partition("@")[0])


def declared_at(tree: MappingNode, path: Path) -> list[str]:
    """Names that packages declare for the block at `path`, which ends with the names of a role and its block."""
    if len(path) < 3 or path[-3] != "roles":
        return []
    role = descend(tree, path[:-1])
    backend = _scalar(role, "backend")
    if role is None or backend is None:
        return []
    entry = Entry(str(path[-2]), role.span, role)
    return list(known_keys(_kind(entry), str(backend.value)).get(str(path[-1]).partition("@")[0], {}))


def _roles(root: MappingNode) -> Iterator[Entry]:
    stages = root.get("stages")
    for flow in (root, *(stages.items if isinstance(stages, SequenceNode) else ())):
        roles = flow.get("roles") if isinstance(flow, MappingNode) else None
        if isinstance(roles, MappingNode):
            yield from roles.entries.values()


def _scalar(node: Node | None, key: str) -> ScalarNode | None:
    found = node.get(key) if isinstance(node, MappingNode) else None
    return found if isinstance(found, ScalarNode) and isinstance(found.value, str) else None


def _kind(role: Entry) -> str:
    kind = _scalar(role.node, "kind")
    return DEFAULT_KINDS.get(role.key, "") if kind is None else str(kind.value)


def _block(node: Node, keys: Keys, block: str) -> Iterator[Diagnostic]:
    declared = keys.get(block, {})
    for name, entry in node.entries.items() if isinstance(node, MappingNode) else ():
        key = declared.get(name)
        if key is not None and not key.takes(plain_value(entry.node)):
            yield _refused(key, entry.node)


def _refused(key: PackageKey, node: Node) -> Diagnostic:
    says = Help(text=f"{key.package} says: {key.doc}")
    if key.choices and isinstance(node, ScalarNode):
        near = near_names(str(node.value), key.choices)
        helps = [Help(text=f"a value with a near name exists: `{near[0]}`")] if near else []
        words = f"one of {', '.join(key.choices)}"
        return diagnose("FR0105", node.span, helps=[*helps, says], key=key.name, choices=words)
    expected = f"one of {', '.join(key.choices)}" if key.choices else _WORDS[key.type]
    of_items = key.type.removeprefix("list[").removesuffix("]")
    if isinstance(node, SequenceNode) and of_items != key.type:
        one = replace(key, type=of_items, default="")
        node = next(item for item in node.items if not one.takes(plain_value(item)))
        expected = _WORDS[of_items]
    return diagnose("FR0102", node.span, helps=[says], expected=expected, found=found(node))
