"""FlowSpec → YAML that loads to the same document: presets merged, variables rendered, defaults left out."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import yaml

from flowrl.spec.flow import FlowSpec, Path
from flowrl.spec.roles import DEFAULT_KINDS, LABEL_PREFIX, LABELLED
from flowrl.spec.tree import MARKS

WIDTH = 110
"""Longest entry written in braces on one line, characters."""

FIRST = ("kind", "model", "backend")
"""Keys of a role that stand before its others."""


class _Flow(dict[str, Any]):
    """A mapping written in braces."""


class _FlowList(list[Any]):
    """A list written in brackets."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _braces(dumper: Any, value: _Flow) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)


def _brackets(dumper: Any, value: _FlowList) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


def _number(dumper: Any, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(value))


def _text(dumper: Any, value: str) -> yaml.ScalarNode:
    """Line breaks of Unicode are escaped: PyYAML would write them as they are, and no reader takes them."""
    style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_CORE: Mapping[str, str] = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": r"<<",
}


def _make_dumper() -> Any:
    """PyYAML's safe dumper with the types of the core schema: it quotes what would be read with another type."""
    dumper: Any = _Dumper
    dumper.yaml_implicit_resolvers = {}
    for tag, pattern in _CORE.items():
        dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), None)
    dumper.add_representer(_Flow, _braces)
    dumper.add_representer(_FlowList, _brackets)
    dumper.add_representer(float, _number)
    dumper.add_representer(str, _text)
    return dumper


_DUMPER = _make_dumper()


def to_yaml(spec: FlowSpec, idle: Collection[Path] = ()) -> str:
    """YAML text whose document equals `spec.document`, but for what a preset wrote at the paths in `idle`: there it
    changes nothing, and would be refused as the user's own."""
    document = spec.document.model_dump(exclude_unset=True, by_alias=True, mode="json")
    for path in idle:
        if not spec.is_given(*path):
            _leave_out(document, path)
    dump: Any = getattr(yaml, "dump")  # noqa: B009  (its stubs are partly unknown)
    return dump(
        _styled(_written(document), 0),
        Dumper=_DUMPER,
        sort_keys=False,
        allow_unicode=True,
        width=10 * WIDTH,
        default_flow_style=False,
    )


def _leave_out(document: Any, path: Path) -> None:
    """Take away the key at `path`, where there is one."""
    for key in path[:-1]:
        if not isinstance(document, dict | list) or (isinstance(document, dict) and key not in document):
            return
        document = cast("Any", document)[key]
    if isinstance(document, dict):
        cast("dict[Any, Any]", document).pop(path[-1], None)


def _written(document: dict[str, Any]) -> dict[str, Any]:
    """What the language spells differently from the documents: edges, labels, kinds by name."""
    made = {key: escaped(value) for key, value in document.items()}
    if "roles" in made:
        made["roles"] = {name: _role(name, role) for name, role in made["roles"].items()}
    if "edges" in made:
        made["edges"] = [_edge(edge) for edge in made["edges"]]
    if "stages" in made:
        made["stages"] = [_written(stage) for stage in made["stages"]]
    return made


def scalar(value: str | int | float | bool | None) -> str:
    """One value on one line, in quotes where it would be read with another type or as something else."""
    if isinstance(value, str) and not value.isprintable():
        return f'"{"".join(_character(each) for each in value)}"'
    dump: Any = getattr(yaml, "dump")  # noqa: B009  (its stubs are partly unknown)
    text: str = dump(value, Dumper=_DUMPER, allow_unicode=True, width=1 << 30)
    return text.removesuffix("\n").removesuffix("\n...")


def _character(each: str) -> str:
    """As it stands between double quotes."""
    if each in '"\\':
        return f"\\{each}"
    if each.isprintable():
        return each
    code = ord(each)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escaped(value: Any) -> Any:
    """Texts that look like templates become templates that give them."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [escaped(item) for item in cast("list[Any]", value)]
    if isinstance(value, str) and any(mark in value for mark in MARKS):
        return f"{{{{ {json.dumps(value, ensure_ascii=False)} }}}}"
    return value


def _role(name: str, role: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key in sorted(role, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST)):
        if key == LABELLED:
            made.update({f"{LABEL_PREFIX}{label}": item for label, item in role[key].items()})
        elif key != "kind" or DEFAULT_KINDS.get(name) != role[key]:
            made[key] = role[key]
    return made


def edge_text(edge: Mapping[str, Any]) -> str:
    """`a, b -> c, d`."""
    return f"{', '.join(edge['sources'])} {edge['arrow']} {', '.join(edge['targets'])}"


def _edge(edge: Mapping[str, Any]) -> Any:
    text = edge_text(edge)
    rest = {key: value for key, value in edge.items() if key not in ("sources", "arrow", "targets")}
    return {"edge": text, **rest} if rest else text


def _styled(value: Any, depth: int) -> Any:
    """Names one a line: the document, its sections and lists of edges and stages. What is inside an entry stands in
    braces where it is short enough."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        block = depth == 1 or any(len(json.dumps(item)) > WIDTH for item in items)
        styled = [_styled(item, 0 if _is_stage(item) else depth + 1) for item in items]
        return styled if block else _FlowList(styled)
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    styled = {key: _styled(item, depth + 1) for key, item in entries.items()}
    is_section = depth == 0 or (depth == 1 and all(isinstance(item, dict) for item in entries.values()))
    return styled if is_section or len(json.dumps(entries)) > WIDTH else _Flow(styled)


def _is_stage(item: Any) -> bool:
    return isinstance(item, dict) and "edge" not in item and "name" in item
