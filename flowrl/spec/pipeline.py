"""Text or a raw tree → FlowSpec. The order: included files, flags that choose presets, presets, flags, variables,
edges, inheritance, schema, rules of the document. As many faults as can be told apart are reported in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TypeVar

from pydantic import ValidationError

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.edits import with_lines
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.check import INHERITED, check_document, missing_step
from flowrl.spec.declared import UNUSABLE, check_package_keys
from flowrl.spec.edges import resolve_edges
from flowrl.spec.files import normal_text, read_text
from flowrl.spec.firings import check_firings
from flowrl.spec.flags import FILE as FLAGS
from flowrl.spec.flags import apply_settings, flags_text, parse_settings
from flowrl.spec.flow import FlowSpec
from flowrl.spec.include import Includes, apply_includes
from flowrl.spec.limits import check_limits
from flowrl.spec.presets import Presets, apply_presets
from flowrl.spec.schema import FlowDocument, StageDocument
from flowrl.spec.tree import Entry, MappingNode, Node, SequenceNode, merge, origins, plain_value
from flowrl.spec.variables import render_variables
from flowrl.spec.yaml_tree import read_yaml

TEMPLATE_CODES = ("FR0115", "FR0116", "FR0117")

_D = TypeVar("_D", FlowDocument, StageDocument)


def load(path: str | FilePath, sets: Sequence[str] = ()) -> FlowSpec:
    """The flow of a YAML file. `sets` are `--set` flags. Raises FlowError (FR00, FR01)."""
    text = read_text(path)
    if FilePath(path).suffix == ".py":
        fix = Help(text=f"a flow built in Python plans itself: `flow.plan()` in {path}, or `flow.to_yaml()` for a file")
        raise FlowError(diagnose("FR0015", Span(str(path), 1, 1, 1, 2), helps=(fix,), problem="the file is Python"))
    return loads(text, str(path), str(FilePath(path).parent), sets)


def loads(text: str, file: str = "<text>", folder: str = ".", sets: Sequence[str] = ()) -> FlowSpec:
    """The flow of a YAML text. `folder` is where its relative paths start. Raises FlowError (FR00, FR01)."""
    text = normal_text(text)
    root = read_yaml(text, file)
    if not isinstance(root, MappingNode) or not root.entries:
        problem = "the document is empty" if root is None else "the document is not a mapping"
        span = root.span if root is not None else Span(file, 1, 1, 1, 2)
        raise FlowError(diagnose("FR0015", span, problem=problem))
    if root.get("flowrl_plan") is not None:
        fix = Help(
            text=f"`flowrl run {file}` runs it; `check`, `plan` and `expand` take the flow that it was made from"
        )
        problem = "the document is a plan"
        raise FlowError(diagnose("FR0015", Span(file, 1, 1, 1, 2), helps=(fix,), problem=problem))
    return build(root, {file: text}, file, folder, sets)


def build(
    root: MappingNode,
    text: Mapping[str, str],
    file: str,
    folder: str,
    sets: Sequence[str] = (),
) -> FlowSpec:
    """The flow of a raw tree, from either front door. Raises FlowError (FR01)."""
    presets, includes = Presets(), Includes()
    try:
        return _built(root, text, file, folder, sets, presets, includes)
    except FlowError as error:
        raise FlowError(with_lines(error.diagnostics, {**text, **includes.text})) from None


def _built(
    root: MappingNode,
    text: Mapping[str, str],
    file: str,
    folder: str,
    sets: Sequence[str],
    presets: Presets,
    includes: Includes,
) -> FlowSpec:
    report: list[Diagnostic] = []
    settings = parse_settings(sets, report)
    root = apply_includes(root, file, folder, includes)
    root = apply_settings(root, [setting for setting in settings if setting.is_use], report)
    check_limits(root)  # what is too much is not worked out first
    root = apply_presets(root, presets)
    root = apply_settings(root, [setting for setting in settings if not setting.is_use], report)
    check_limits(root)
    root = render_variables(root, report)
    root = _resolve_all_edges(root, report)
    texts = {**text, **includes.text, **presets.text} | ({FLAGS: flags_text(sets)} if sets else {})
    packages = list(check_package_keys(root))
    if any(found.code == UNUSABLE for found in packages):
        raise FlowError([*report, *packages])
    made = _documents(root, texts, presets, report)
    report.extend((*check_document(root), *packages))
    if report or made is None:
        raise FlowError(_without_followers(report))
    paths = dict(origins(root))
    spec = FlowSpec(
        document=made[0],
        stages=made[1],
        origins=paths,
        file=file,
        folder=folder,
        text=texts,
        asked=presets.asked,
    )
    many = list(check_firings(spec))
    if many:
        raise FlowError(many)
    return spec


@dataclass(frozen=True, slots=True)
class _Checker:
    """Validates trees; faults go to the report."""

    texts: Mapping[str, str]
    presets: Presets
    report: list[Diagnostic]

    def validate(self, document: type[_D], tree: MappingNode) -> _D | None:
        try:
            return document.model_validate(plain_value(tree))
        except ValidationError as error:
            from flowrl.spec.schema_errors import Context, schema_diagnostics

            context = Context(tree, document, self.texts, self.presets.asked)
            self.report.extend(schema_diagnostics(error, context))
            return None


def _documents(
    root: MappingNode, texts: Mapping[str, str], presets: Presets, report: list[Diagnostic]
) -> tuple[FlowDocument, tuple[StageDocument, ...]] | None:
    """The document and its stages; None if any of them is at fault, which then is in `report`."""
    checker = _Checker(texts, presets, report)
    stages = root.get("stages")
    if not isinstance(stages, SequenceNode) or not stages.items:
        return _plain_flow(root, checker)
    base = checker.validate(FlowDocument, root.without("stages"))
    inherited = [_inherit(root, stage) for stage in stages.items]
    resolved = [checker.validate(StageDocument, stage) for stage in inherited if isinstance(stage, MappingNode)]
    bad = tuple(stage for stage in stages.items if not isinstance(stage, MappingNode))
    if bad:
        entry = replace(root.entries["stages"], node=replace(stages, items=bad))
        checker.validate(FlowDocument, root.with_entry(entry))
    made = tuple(stage for stage in resolved if stage is not None)
    if base is None or len(made) != len(stages.items):
        return None
    written = tuple(_completed(root, stage) for stage in stages.items)
    whole = replace(stages, items=written)
    document = checker.validate(FlowDocument, root.with_entry(replace(root.entries["stages"], node=whole)))
    return None if document is None else (document, made)


def _plain_flow(root: MappingNode, checker: _Checker) -> tuple[FlowDocument, tuple[StageDocument, ...]] | None:
    document = checker.validate(FlowDocument, root)
    if "step" not in root.entries and not near_names("step", root.entries.keys() - set(FlowDocument.model_fields)):
        checker.report.append(missing_step(root))
        return None
    if document is None:
        return None
    stage = checker.validate(StageDocument, root.without("flowrl", "allow", "stages", "use"))
    return None if stage is None else (document, (stage,))


def _inherit(root: MappingNode, stage: Node) -> Node:
    """The stage over what it shares with the others."""
    if not isinstance(stage, MappingNode):
        return stage
    entries = dict(stage.entries)
    for key in (*INHERITED, "vars"):
        shared = root.entries.get(key)
        if shared is None:
            continue
        own = entries.get(key)
        entries[key] = shared if own is None else replace(own, node=merge(shared.node, own.node))
    return replace(stage, entries=entries)


def _completed(root: MappingNode, stage: Node) -> Node:
    """The stage as written, but with models and data sets that it changes in part made whole, so that each can be
    checked on its own."""
    if not isinstance(stage, MappingNode):
        return stage
    for section in ("models", "data", "cluster"):
        own, shared = stage.entries.get(section), root.entries.get(section)
        if own is None or shared is None:
            continue
        stage = stage.with_entry(replace(own, node=_completed_section(section, shared.node, own.node)))
    return stage


def _completed_section(section: str, shared: Node, own: Node) -> Node:
    if section == "cluster" or not (isinstance(shared, MappingNode) and isinstance(own, MappingNode)):
        return merge(shared, own)
    entries: dict[str, Entry] = {}
    for name, entry in own.entries.items():
        below = shared.get(name)
        entries[name] = entry if below is None else replace(entry, node=merge(below, entry.node))
    return replace(own, entries=entries)


def _resolve_all_edges(root: MappingNode, report: list[Diagnostic]) -> MappingNode:
    root = _resolve_edges(root, report)
    stages = root.entries.get("stages")
    if stages is None or not isinstance(stages.node, SequenceNode):
        return root
    items = tuple(_resolve_edges(item, report) if isinstance(item, MappingNode) else item for item in stages.node.items)
    return root.with_entry(replace(stages, node=replace(stages.node, items=items)))


def _resolve_edges(node: MappingNode, report: list[Diagnostic]) -> MappingNode:
    entry = node.entries.get("edges")
    return node if entry is None else node.with_entry(replace(entry, node=resolve_edges(entry.node, report)))


def _without_followers(report: list[Diagnostic]) -> list[Diagnostic]:
    """Each fault once; a scalar whose template failed has no second fault."""
    failed = [d.labels[0].span for d in report if d.code in TEMPLATE_CODES and d.labels]
    kept: dict[tuple[str, Span | None, str], Diagnostic] = {}
    for diagnostic in report:
        label = diagnostic.labels[0] if diagnostic.labels else None
        is_cause = diagnostic.code in TEMPLATE_CODES
        if label is not None and not is_cause and any(_contains(label.span, span) for span in failed):
            continue
        kept.setdefault((diagnostic.code, label and label.span, label.text if label else ""), diagnostic)
    return list(kept.values())


def _contains(outer: Span, inner: Span) -> bool:
    if outer.file != inner.file or outer.line != outer.end_line or outer.line != inner.line:
        return False
    return outer.column <= inner.column and inner.end_column <= outer.end_column
