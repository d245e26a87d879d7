"""Rules of one document that its types do not say: names, what may stand beside stages, where a stage starts from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from flowrl.diag.catalogue import CODES
from flowrl.diag.diagnostic import Diagnostic, Help, Label, Severity, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.flags import FILE as FLAGS
from flowrl.spec.flow import Path
from flowrl.spec.roles import DEFAULT_KINDS, LABEL_PREFIX
from flowrl.spec.tree import MappingNode, Node, ScalarNode, SequenceNode, descend, key_span, walk

SHARED = ("flowrl", "name", "vars", "cluster", "models", "data", "run", "allow", "stages")
"""What may stand beside `stages:`."""
INHERITED = ("cluster", "models", "data", "run")

LARGEST_INT = 1 << 63

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_NAME_RULE = "letters, digits, `_` and `-`, and no digit first"
FLOW_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")
_FLOW_NAME_RULE = "a run's folder has this name: letters, digits, `_`, `-` and `.`, at most 100"
_NAMED: tuple[Path, ...] = (("models",), ("data",), ("roles",), ("placement", "pools"), ("cluster", "groups"))

_WITH_FUNCTIONS: Mapping[Path, tuple[str, ...]] = {("data",): ("source",), ("roles",): ("function", "env")}
"""Sections whose entries may have `args`, and the keys that name what takes them."""
DATA_FILES = (".jsonl", ".json", ".parquet", ".arrow")
"""What a data set in one file is called; another source is a folder, a hub id or a function."""


def check_document(root: MappingNode) -> Iterator[Diagnostic]:
    """Faults of the whole document, as written (edges parsed, nothing inherited)."""
    yield from _check_flow_name(root, ())
    yield from _check_names(root, ())
    numbers = list(_numbers(root))
    yield from _check_numbers(numbers)
    yield from _check_clips(numbers)
    yield from _check_allowed(root)
    stages = root.get("stages")
    if not isinstance(stages, SequenceNode) or not stages.items:
        yield from _check_starts(root, (), [], root)
        return
    yield from _check_beside_stages(root)
    seen: list[MappingNode] = []
    for index, stage in enumerate(stages.items):
        if isinstance(stage, MappingNode):
            yield from _check_stage(root, stage, index, seen)
            seen.append(stage)


def _check_stage(root: MappingNode, stage: MappingNode, index: int, earlier: list[MappingNode]) -> Iterator[Diagnostic]:
    path: Path = ("stages", index)
    name = stage.get("name")
    yield from _check_flow_name(root, path)
    yield from _check_names(root, path)
    yield from _check_starts(root, path, earlier, stage)
    for other in earlier:
        first = other.get("name")
        if isinstance(first, ScalarNode) and isinstance(name, ScalarNode) and first.value == name.value:
            also = (Label(first.span, "the first"),)
            yield diagnose("FR0125", name.span, also=also, what="stage", name=name.value)


def _check_flow_name(root: MappingNode, path: Path) -> Iterator[Diagnostic]:
    node = descend(root, (*path, "name"))
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return
    pattern, rule = (NAME, _NAME_RULE) if path else (FLOW_NAME, _FLOW_NAME_RULE)
    if pattern.match(node.value) is None:
        yield diagnose("FR0124", node.span, name=node.value, rule=rule)


def _check_names(root: MappingNode, path: Path) -> Iterator[Diagnostic]:
    for section in _NAMED:
        node = descend(root, (*path, *section))
        if not isinstance(node, MappingNode):
            continue
        for name, entry in node.entries.items():
            if NAME.match(name) is None:
                yield diagnose("FR0124", entry.key_span, name=name, rule=_NAME_RULE)
            elif section == ("roles",) and name in ("data", "stages"):
                yield diagnose("FR0124", entry.key_span, name=name, rule="this name is reserved for the section")
            if section == ("roles",) and isinstance(entry.node, MappingNode):
                yield from _check_labels(entry.node)
            if section in _WITH_FUNCTIONS:
                yield from _check_arguments(name, entry.node, _WITH_FUNCTIONS[section])


def _check_arguments(name: str, node: Node, keys: tuple[str, ...]) -> Iterator[Diagnostic]:
    """`args` need a function among `keys`, or a data set of several splits: a folder or hub id."""
    if not isinstance(node, MappingNode) or "args" not in node.entries:
        return
    if not any(":" in _text(node.get(key)) or (key == "source" and _has_splits(_text(node.get(key)))) for key in keys):
        yield diagnose("FR0128", node.entries["args"].key_span, parent=name)


def _has_splits(source: str) -> bool:
    return bool(source) and not source.endswith(DATA_FILES)


def _check_labels(role: MappingNode) -> Iterator[Diagnostic]:
    for key, entry in role.entries.items():
        label = key.removeprefix(LABEL_PREFIX)
        if key.startswith(LABEL_PREFIX) and NAME.match(label) is None:
            yield diagnose("FR0124", entry.key_span, name=label, rule=f"a label is {_NAME_RULE}")


def _numbers(root: MappingNode) -> Iterator[tuple[Path, ScalarNode, int | float]]:
    """Every number with its path."""
    for path, node in walk(root):
        if isinstance(node, ScalarNode) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            yield path, node, node.value


def _check_numbers(numbers: Iterable[tuple[Path, ScalarNode, int | float]]) -> Iterator[Diagnostic]:
    """Numbers that a plan's JSON cannot hold. Keys with a type of their own have told what is not finite already."""
    for path, node, value in numbers:
        key = next((key for key in reversed(path) if isinstance(key, str)), "")
        if isinstance(value, int) and abs(value) >= LARGEST_INT:
            yield diagnose("FR0104", node.span, found="found a very large number", key=key, rule="smaller than 2^63")
        elif isinstance(value, float) and not isfinite(value) and {"args", "extra"} & set(path[:-1]):
            yield diagnose("FR0104", node.span, found=f"found {value}", key=key, rule="a finite number")


def _check_clips(numbers: Iterable[tuple[Path, ScalarNode, int | float]]) -> Iterator[Diagnostic]:
    """A clip range reaches no further down than 0: a number is the distance on both sides."""
    for path, low, value in numbers:
        is_pair = path[-3:] == ("update", "clip_ratio", "low")
        if (not is_pair and path[-2:] != ("update", "clip_ratio")) or not 1 < value < LARGEST_INT:
            continue
        written = f"{{low: 1.0, high: {value:g}}}"
        fix = "write `low: 1.0`: no lower bound" if is_pair else f"write `clip_ratio: {written}`: no lower bound"
        found = f"`low` is {value:g}" if is_pair else f"`clip_ratio: {value:g}` is `low` and `high`"
        yield diagnose("FR0131", low.span, helps=[Help(text=fix)], found=found, floor=1 - value)


def _check_allowed(root: MappingNode) -> Iterator[Diagnostic]:
    """`allow` mutes warnings, by codes that exist."""
    allow = root.get("allow")
    for item in allow.items if isinstance(allow, SequenceNode) else ():
        name = _text(item)
        code = CODES.get(name)
        warnings = [other for other, entry in CODES.items() if entry.severity == Severity.WARNING]
        if code is None:
            yield diagnose("FR0129", item.span, helps=_near(name, warnings, "warning"), problem=f"there is no `{name}`")
        elif code.severity != Severity.WARNING:
            yield diagnose("FR0129", item.span, problem=f"`{name}` is an error: {code.headline}")


def _check_beside_stages(root: MappingNode) -> Iterator[Diagnostic]:
    for key, entry in root.entries.items():
        if key in ("roles", "edges", "step", "schedule", "placement", "assume", "use"):
            shared = ", ".join(name for name in SHARED if name != "stages")
            is_flag = entry.key_span.file == FLAGS
            helps = [Help(text=f"set it in a stage: `--set stages.NAME.{key}…`")] if is_flag else []
            yield diagnose("FR0123", entry.key_span, helps=helps, key=f"`{key}`", shared=shared)


def _check_starts(
    root: MappingNode, path: Path, earlier: list[MappingNode], stage: MappingNode
) -> Iterator[Diagnostic]:
    """`source: stages.NAME.ROLE` names a trainer of an earlier stage."""
    sections = [descend(root, (*path, "models"))] + ([descend(root, ("models",))] if path else [])
    names: set[str] = set()
    for models in sections:
        if not isinstance(models, MappingNode):
            continue
        for name, entry in models.entries.items():
            source = entry.node.get("source") if isinstance(entry.node, MappingNode) else None
            if name in names or not isinstance(source, ScalarNode) or not str(source.value).startswith("stages."):
                continue
            names.add(name)
            problem = _start_problem(str(source.value), earlier, source.span)
            if problem is not None:
                yield problem


def _start_problem(source: str, earlier: list[MappingNode], span: Span) -> Diagnostic | None:
    parts = source.split(".")
    if len(parts) != 3:
        return diagnose("FR0121", span, problem="write `stages.NAME.ROLE`")
    by_name = {_text(stage.get("name")): stage for stage in earlier}
    stage = by_name.get(parts[1])
    if stage is None and "" in by_name:
        return None  # the stage without a name, which is told, may be the one that is meant
    if stage is None:
        return diagnose(
            "FR0121", span, helps=_near(parts[1], list(by_name), "stage"), problem=f"no stage `{parts[1]}` stands above"
        )
    trainers = [name for name, kind in _kinds(stage) if kind == "trainer"]
    if parts[2] not in trainers:
        problem = f"stage `{parts[1]}` has no trainer `{parts[2]}`"
        return diagnose("FR0121", span, helps=_near(parts[2], trainers, "trainer"), problem=problem)
    return None


def _text(node: Node | None) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""


def _kinds(stage: MappingNode) -> Iterator[tuple[str, str]]:
    roles = stage.get("roles")
    if not isinstance(roles, MappingNode):
        return
    for name, entry in roles.entries.items():
        kind = entry.node.get("kind") if isinstance(entry.node, MappingNode) else None
        yield name, _text(kind) or DEFAULT_KINDS.get(name, "")


def _near(name: str, known: list[str], what: str) -> list[Help]:
    near = near_names(name, known)
    if near:
        return [Help(text=f"a {what} with a near name exists: `{near[0]}`")]
    if known:
        return [Help(text=f"the {what}s are {', '.join(f'`{other}`' for other in known)}")]
    return [Help(text=f"there is no {what} to start from; name a folder or hub id")]


def missing_step(root: MappingNode) -> Diagnostic:
    """A flow without stages needs `step`."""
    span = key_span(root, ("edges",)) if "edges" in root.entries else root.span
    helps = [Help(text="add `step: {prompts: …}`")]
    return diagnose("FR0101", span, helps=helps, parent="the flow", key="step", expected="a mapping")
