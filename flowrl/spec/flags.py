"""`--set a.b.c=value`: flags override values of the tree. The i-th flag is line i of the file `--set` in spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.flow import OriginKind, Path
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, descend
from flowrl.spec.yaml_tree import read_yaml

FILE = "--set"
_FLAG = re.compile(r"(?P<path>[^=\s]+?)\s*=(?P<value>.*)\Z", re.DOTALL)
NAMED = ("models", "data", "roles", "vars", "pools", "groups")
"""Mappings by names that the flow gives: a flag changes an entry and makes none."""
FILES = "include"
"""No flag gives it: files are merged before flags."""
INHERITED = ("models", "data", "vars", "cluster", "run")


def flags_text(sets: Sequence[str]) -> str:
    """The flags as the file that spans name: one a line, whatever breaks of lines a flag holds."""
    return "\n".join(re.sub(r"[\r\n]", " ", text) for text in sets)


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag: keys with their places, and the value."""

    keys: tuple[tuple[str, Span], ...]
    value: Node

    @property
    def is_use(self) -> bool:
        """Whether it chooses a preset, which must happen before presets are merged."""
        return self.keys[-1][0] == "use"


def parse_settings(sets: Sequence[str], report: list[Diagnostic]) -> list[Setting]:
    settings: list[Setting] = []
    for line, text in enumerate(sets, start=1):
        setting = _parse(text, line, report)
        if setting is not None:
            settings.append(setting)
    return settings


def _parse(text: str, line: int, report: list[Diagnostic]) -> Setting | None:
    found = _FLAG.match(text)
    if found is None or not all(found["path"].split(".")):
        report.append(diagnose("FR0119", _span(line, 0, len(text)), problem="a flag is `path.to.key=value`"))
        return None
    span = _span(line, found.start("value"), len(text))
    try:
        value = read_yaml(found["value"], FILE, OriginKind.FLAG)
    except FlowError as error:
        words = error.diagnostics[0].labels[0].text if error.diagnostics[0].labels else ""
        report.append(diagnose("FR0119", span, problem=f"the value is not YAML: {words}"))
        return None
    empty = ScalarNode(value=None, span=span, kind=OriginKind.FLAG)
    return Setting(_keys(found["path"], line), empty if value is None else _located(value, span))


def _span(line: int, start: int, stop: int) -> Span:
    return Span(FILE, line, start + 1, line, max(stop, start + 1) + 1)


def _keys(path: str, line: int) -> tuple[tuple[str, Span], ...]:
    parts = path.split(".")
    if "assume" in parts[:-2]:
        at = parts.index("assume") + 1  # its keys are `role.op`
        parts[at : at + 2] = [".".join(parts[at : at + 2])]
    keys: list[tuple[str, Span]] = []
    start = 0
    for part in parts:
        keys.append((part, Span(FILE, line, start + 1, line, start + len(part) + 1)))
        start += len(part) + 1
    return tuple(keys)


def _located(node: Node, span: Span) -> Node:
    """The value as a whole is the place of all that is in it."""
    if isinstance(node, MappingNode):
        entries = {
            key: replace(entry, key_span=span, node=_located(entry.node, span)) for key, entry in node.entries.items()
        }
        return replace(node, entries=entries, span=span)
    if isinstance(node, SequenceNode):
        return replace(node, items=tuple(_located(item, span) for item in node.items), span=span)
    return replace(node, span=span)


def apply_settings(root: MappingNode, settings: Sequence[Setting], report: list[Diagnostic]) -> MappingNode:
    """The tree with each flag's value. Unknown paths are reported (FR0120), as are flags without effect (FR0122)."""
    for setting in settings:
        useless = _without_effect(root, setting)
        if useless is not None:
            report.append(useless)
            continue
        try:
            _check_not_files(setting)
            changed = _set(root, setting.keys, setting.value, ())
        except FlowError as error:
            report.extend(error.diagnostics)
            continue
        assert isinstance(changed, MappingNode)
        root = changed
    return root


def _check_not_files(setting: Setting) -> None:
    key, span = setting.keys[-1]
    if key == FILES and (len(setting.keys) == 1 or setting.keys[0][0] == "stages"):
        helps = [Help(text="name the file in the flow: `include: [base.yaml]`")]
        raise FlowError(diagnose("FR0120", span, helps=helps, problem="files are merged before flags"))


def _set(node: Node, keys: tuple[tuple[str, Span], ...], value: Node, path: Path) -> Node:
    if not keys:
        return value
    (key, span), *rest = keys
    if isinstance(node, SequenceNode):
        return _set_item(node, key, span, tuple(rest), value, path)
    if not isinstance(node, MappingNode):
        problem = f"`{path[-1]}` is a single value here and has no keys"
        raise FlowError(diagnose("FR0120", span, problem=problem))
    below = node.get(key)
    if below is None:
        if path and path[-1] in NAMED:
            raise FlowError(_unknown(key, span, str(path[-1]), list(node.entries)))
        below = MappingNode(span=span, kind=OriginKind.FLAG)
    changed = _set(below, tuple(rest), value, (*path, key))
    entry = node.entries.get(key) if rest else None
    return node.with_entry(
        replace(entry, node=changed) if entry is not None else Entry(key, span, changed, OriginKind.FLAG)
    )


def _set_item(
    node: SequenceNode, key: str, span: Span, rest: tuple[tuple[str, Span], ...], value: Node, path: Path
) -> Node:
    names = [_name(item) for item in node.items]
    if path != ("stages",):
        raise FlowError(diagnose("FR0120", span, problem=f"`{path[-1]}` is a list; a flag gives it as a whole"))
    index = names.index(key) if key in names else int(key) if key.isdecimal() else len(names)
    if index >= len(names):
        raise FlowError(_unknown(key, span, "stages", [name for name in names if name]))
    changed = _set(node.items[index], rest, value, (*path, index))
    return replace(node, items=(*node.items[:index], changed, *node.items[index + 1 :]))


def _name(stage: Node) -> str:
    name = stage.get("name") if isinstance(stage, MappingNode) else None
    return str(name.value) if isinstance(name, ScalarNode) else ""


def _unknown(key: str, span: Span, parent: str, known: list[str]) -> Diagnostic:
    near = near_names(key, known)
    if near:
        helps = [Help(text=f"a name near it exists: `{near[0]}`")]
    elif known:
        helps = [Help(text=f"`{parent}` has {', '.join(f'`{name}`' for name in known)}")]
    else:
        helps = [Help(text=f"`{parent}` is empty; write the entry in the flow")]
    return diagnose("FR0120", span, helps=helps, problem=f"`{parent}` has no `{key}`")


def _without_effect(root: MappingNode, setting: Setting) -> Diagnostic | None:
    """FR0122 if every stage gives its own value of what the flag sets for all of them."""
    path = tuple(key for key, _ in setting.keys)
    stages = root.get("stages")
    if path[0] not in INHERITED or not isinstance(stages, SequenceNode) or not stages.items:
        return None
    if any(descend(stage, path) is None for stage in stages.items):
        return None
    where = ".".join(path)
    names = [_name(stage) for stage in stages.items]
    helps = [Help(text=f"set it in a stage: `--set stages.{names[-1]}.{where}=…`")]
    span = Span(FILE, setting.keys[0][1].line, 1, setting.keys[0][1].line, setting.keys[-1][1].end_column)
    return diagnose("FR0122", span, helps=helps, path=where, stages=", ".join(f"`{name}`" for name in names))
