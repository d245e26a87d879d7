"""What pydantic refuses → diagnostics at the place that the user can edit, with the nearest legal spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flowrl.diag.diagnostic import Diagnostic, Help, Label, diagnose
from flowrl.diag.near import edit_distance, is_only_near, near_names
from flowrl.diag.span import Span
from flowrl.spec.blocks import GenerateDocument, UpdateDocument
from flowrl.spec.declared import declared_at
from flowrl.spec.document import FORMS, Document
from flowrl.spec.flow import OriginKind, Path
from flowrl.spec.roles import DEFAULT_KINDS, KINDS, LABEL_PREFIX, LABELLED
from flowrl.spec.schema import FlowDocument, StageDocument
from flowrl.spec.tree import MappingNode, Node, ScalarNode, Unknown, descend, key_span, merged_at
from flowrl.spec.types import annotation_at, document_at, expected, fields, found, is_document, known_above, options

ALL_KEYS = 8
"""As many keys are listed when none is near."""

_RULES: Mapping[str, str] = {
    "greater_than_equal": "at least {ge:,.10g}",
    "greater_than": "more than {gt:,.10g}",
    "less_than_equal": "at most {le:,.10g}",
    "less_than": "less than {lt:,.10g}",
    "finite_number": "a finite number",
}
_GLUED = re.compile(r"(?P<key>[A-Za-z_][\w@-]*):(?P<value>\S+)\Z")
"""A key and its value without the space that would make them so."""


@lru_cache(maxsize=8)
def lines_of(text: str) -> list[str]:
    """Asked once for each of maybe hundreds of faults."""
    return text.split("\n")


@dataclass(frozen=True, slots=True)
class Context:
    """What is needed to tell where a fault lies: the tree that was checked, its class, the texts, the presets asked."""

    tree: MappingNode
    document: type[Document]
    text: Mapping[str, str]
    asked: Mapping[str, Span]
    above: dict[Path, Mapping[str, str]] = field(default_factory=dict[Path, Mapping[str, str]], compare=False)
    """What `known_above` says of a mapping: worked out once, however many of its keys are at fault."""

    def node(self, path: Path) -> Node:
        """The value at `path`, else its nearest ancestor."""
        for end in range(len(path), 0, -1):
            node = descend(self.tree, path[:end])
            if node is not None:
                return node
        return self.tree

    def with_preset(self, span: Span, path: Path) -> tuple[tuple[Label, ...], list[Help]]:
        """For a value of a preset: where the document asks for it, and the key that overrides the value."""
        asked = self.asked.get(span.file)
        if asked is None:
            return (), []
        key = ".".join(str(part) for part in path)
        return (Label(asked, "from this preset"),), [Help(text=f"override `{key}` in the flow")]

    def with_definition(self, path: Path) -> tuple[Label, ...]:
        """For the value of an alias: its anchor; for one that a merge brought in: the merge."""
        node = self.node(path)
        if node.anchor is not None:
            return (Label(node.anchor, "defined here"),)
        merge = merged_at(self.tree, path)
        return () if merge is None else (Label(merge, "merged in here"),)

    def line_with(self, span: Span, new: str) -> str | None:
        """The source line of `span` with `new` in its place; None for spans over lines or without source."""
        text = self.text.get(span.file)
        if text is None or span.line != span.end_line:
            return None
        row = lines_of(text)[span.line - 1]
        return f"{row[: span.column - 1]}{new}{row[span.end_column - 1 :]}"


def schema_diagnostics(error: ValidationError, context: Context) -> list[Diagnostic]:
    every = [each for each in error.errors(include_url=False) if not _is_unknown(_path(each, context.tree), context)]
    found = [
        each
        for each in every
        if each["type"] != "extra_forbidden" or _emptied(_path(each, context.tree), context) is None
    ]
    unknown: dict[Path, list[str]] = {}
    for path in [_path(details, context.tree) for details in found if details["type"] == "extra_forbidden"]:
        unknown.setdefault(path[:-1], []).append(str(path[-1]))
    return [
        _diagnostic(details, context)
        for details in found
        if details["type"] != "missing" or not _is_misspelt(_path(details, context.tree), unknown, context)
    ]


def _is_unknown(path: Path, context: Context) -> bool:
    """Whether the value is that of a variable whose own fault is told."""
    node = descend(context.tree, path)
    return isinstance(node, ScalarNode) and isinstance(node.value, Unknown)


def _emptied(path: Path, context: Context) -> str | None:
    """The key above an unknown one that has nothing under it and would take it: its lines are not indented enough."""
    if path[:-1] not in context.above:
        context.above[path[:-1]] = known_above(context.document, context.tree, path[:-1])
    key = context.above[path[:-1]].get(str(path[-1]))
    node = None if key is None else descend(context.tree, (*path[:-1], key))
    if key is None or not isinstance(node, ScalarNode) or node.value is not None or node.text:
        return None
    wanted = options(annotation_at(context.document, context.tree, (*path[:-1], key)))
    takes = any(get_origin(each) is dict or (is_document(each) and path[-1] in fields(each)) for each in wanted)
    return key if takes else None


def _is_misspelt(missing: Path, unknown: Mapping[Path, list[str]], context: Context) -> bool:
    """Whether an unknown key beside it is near the missing one, so that both have one cause."""
    beside = unknown.get(missing[:-1], [])
    within = _direct(missing[:-1], context) if missing[-1] in ("update", "generate") else []
    return any(near_names(str(name), beside) for name in (missing[-1], *within))


def _diagnostic(details: ErrorDetails, context: Context) -> Diagnostic:
    path = _path(details, context.tree)
    facts: Mapping[str, Any] = details.get("ctx", {})
    kind = details["type"]
    if kind == "missing":
        return _missing(path, context)
    if kind == "extra_forbidden":
        return _unknown_key(path, context)
    if kind == "literal_error":
        return _not_one_of(path, context)
    if kind in _RULES:
        return _out_of_range(path, _RULES[kind].format(**facts), context)
    if kind.startswith("union_tag") and _above(path) == "roles":
        return _role_kind(path, context)
    if kind == "flowrl_exactly_one":
        return _exactly_one(path, str(facts["found"]), str(facts["choices"]), context)
    if kind == "flowrl_cluster_form":
        return _at(path, context, "FR0107", found={"both": "both forms", "neither": "neither form"}[facts["found"]])
    return _wrong_type(path, context)


def _above(path: Path) -> str | int | None:
    """The key above the last one."""
    return list(path)[-2] if len(path) > 1 else None


def _path(details: ErrorDetails, tree: MappingNode) -> Path:
    """The location without pydantic's own parts: forms and kinds of unions."""
    path: list[str | int] = []
    after_role = False
    for key in details["loc"]:
        if key in FORMS or (after_role and key in KINDS):
            after_role = False
            continue
        if path and path[-1] == LABELLED:
            path[-1] = f"{LABEL_PREFIX}{key}"
            continue
        after_role = bool(path) and path[-1] == "roles"
        path.append(key)
    return tuple(path)


def parent_words(path: Path, context: Context) -> str:
    """How a mapping is called: `update`, the flow, the stage."""
    if not path:
        return "the stage" if context.document is StageDocument else "the flow"
    return f"entry {path[-1] + 1} of `{_above(path)}`" if isinstance(path[-1], int) else f"`{path[-1]}`"


def _at(path: Path, context: Context, code: str, **facts: str) -> Diagnostic:
    """The diagnostic at the value of `path`."""
    node = context.node(path)
    preset, helps = context.with_preset(node.span, path)
    also = (*context.with_definition(path), *preset)
    return diagnose(code, node.span, also=also, notes=(), helps=helps, **facts)


def _missing(path: Path, context: Context) -> Diagnostic:
    parent, key = path[:-1], str(path[-1])
    words = expected(annotation_at(context.document, context.tree, path))
    span = key_span(context.tree, parent)
    preset, helps = context.with_preset(span, path)
    if not parent and key == "flowrl":
        helps = [Help(text="start the file with the version of the language: `flowrl: 1`")]
    facts = {"parent": parent_words(parent, context), "key": key, "expected": words}
    return diagnose("FR0101", span, also=preset, notes=(), helps=helps, **facts)


def _unknown_key(path: Path, context: Context) -> Diagnostic:
    parent, key = path[:-1], str(path[-1])
    document = document_at(context.document, context.tree, parent)
    known = [*(fields(document) if document is not None else []), *declared_at(context.tree, parent)]
    known += [name for name in _direct(parent, context) if name not in known]
    span = key_span(context.tree, path)
    every = near_names(key, known)
    near = [name for name in every if not _is_written(context, (*parent, name), span.file)]
    helps: list[Help] = []
    kinds = _kinds_with(key, parent, context) if not near else []
    if near:
        line = context.line_with(span, near[0])
        certain = is_only_near(key, near)
        helps = [Help(text="a key with a near name exists", span=span, replacement=line, certain=certain)]
        helps += [Help(text=f"or `{other}`") for other in near[1:]]
    elif key in StageDocument.model_fields and not parent:
        helps = [Help(text=f"`{key}` is a key of a stage: it stands in an entry of `stages:`")]
    elif every and edit_distance(key, every[0]) <= 1:
        helps = [Help(text=f"`{every[0]}`, which has a near name, is written already: remove one of the two")]
    elif kinds:
        helps = [Help(text=f"`{key}` is a key of roles of kind {' or '.join(kinds)}")]
    elif 0 < len(known) <= ALL_KEYS:
        helps = [Help(text=f"the keys are {', '.join(f'`{name}`' for name in known)}")]
    elif known:
        helps = [Help(text=f"the keys are {', '.join(known)}")]
    preset, _ = context.with_preset(span, path)
    also = (*context.with_definition(path), *preset)
    return diagnose("FR0103", span, also=also, helps=helps, parent=_of_kind(parent, context))


def _direct(parent: Path, context: Context) -> list[str]:
    """Keys of a block that the call of a role in Python takes as well."""
    node = descend(context.tree, parent)
    if node is None or node.kind is not OriginKind.PYTHON or _above(parent) != "roles":
        return []
    blocks = {"trainer": UpdateDocument, "generator": GenerateDocument}
    block = blocks.get(_kind_at(parent, context))
    return [] if block is None else list(fields(block))


def _of_kind(path: Path, context: Context) -> str:
    """The words for a mapping; of a role with its kind, which says what keys it has."""
    words = parent_words(path, context)
    kind = _kind_at(path, context) if _above(path) == "roles" else ""
    return f"{words}, {'an' if kind[0] in 'aeiou' else 'a'} {kind}" if kind else words


def _kind_at(path: Path, context: Context) -> str:
    """The kind of the role at `path`, written or by its name; empty if it has none."""
    node = descend(context.tree, (*path, "kind"))
    return str(node.value) if isinstance(node, ScalarNode) else DEFAULT_KINDS.get(str(path[-1]), "")


def _kinds_with(key: str, parent: Path, context: Context) -> list[str]:
    """Kinds of roles that have such a key, for a key of a role."""
    if _above(parent) != "roles":
        return []
    members = options(annotation_at(context.document, context.tree, parent))
    return [str(get_args(m.model_fields["kind"].annotation)[0]) for m in members if key in fields(m)]


def _is_written(context: Context, path: Path, file: str) -> bool:
    """Whether `file` has the key at `path` as well, so that renaming another one to it is no fix."""
    return descend(context.tree, path) is not None and key_span(context.tree, path).file == file


def _not_one_of(path: Path, context: Context) -> Diagnostic:
    node = context.node(path)
    choices = _choices(annotation_at(context.document, context.tree, path))
    value = str(node.value) if isinstance(node, ScalarNode) else ""
    near = [value] if value in choices else near_names(value, choices)
    words = f"one of {', '.join(choices)}" if len(choices) > 1 else "".join(choices)
    preset, helps = context.with_preset(node.span, path)
    if near:
        line = context.line_with(node.span, near[0])
        quoted = value == near[0] and isinstance(node, ScalarNode) and not node.plain
        words_ = "written without quotes" if quoted else "a value with a near name exists"
        help_ = Help(text=words_, span=node.span, replacement=line)
        helps = [help_, *helps]
    also = (*context.with_definition(path), *preset)
    return diagnose("FR0105", node.span, also=also, helps=helps, key=_key(path), choices=words)


def _choices(annotation: Any) -> list[str]:
    return [str(value) for member in options(annotation) if get_origin(member) is Literal for value in get_args(member)]


def _key(path: Path) -> str:
    return str(next((key for key in reversed(path) if isinstance(key, str)), "value"))


def _out_of_range(path: Path, rule: str, context: Context) -> Diagnostic:
    node = context.node(path)
    value = node.text or str(node.value) if isinstance(node, ScalarNode) else ""
    if isinstance(node, ScalarNode) and "{{" in value:
        value = str(node.value)
    return _at(path, context, "FR0104", found=f"found {value}", key=_key(path), rule=rule)


def _role_kind(path: Path, context: Context) -> Diagnostic:
    kind = descend(context.tree, (*path, "kind"))
    kinds = ", ".join(KINDS)
    if kind is None:
        near = near_names(str(path[-1]), DEFAULT_KINDS)
        helps = [Help(text=f"a role with a near name has its kind by name: `{near[0]}`")] if near else []
        if path[-1] in FlowDocument.model_fields:
            helps = [Help(text=f"`{path[-1]}` is a key of the flow, not a role: start it in column 1")]
        helps.append(Help(text=f"add `kind:`, one of {kinds}"))
        reason = f"only {', '.join(f'`{name}`' for name in DEFAULT_KINDS)} have their kind by name"
        facts = {"problem": f"`{path[-1]}` has no `kind:`", "reason": reason, "kinds": kinds}
        return diagnose("FR0108", key_span(context.tree, path), also=(), notes=(), helps=helps, **facts)
    value = str(kind.value) if isinstance(kind, ScalarNode) else "this"
    near = near_names(value, KINDS)
    line = context.line_with(kind.span, near[0]) if near else None
    fixed = [Help(text="a kind with a near name exists", span=kind.span, replacement=line)] if near else []
    reason, problem = f"the kinds are {kinds}", f"`{value}` is no kind"
    return diagnose("FR0108", kind.span, helps=fixed, problem=problem, reason=reason, kinds=kinds)


def _exactly_one(path: Path, given: str, choices: str, context: Context) -> Diagnostic:
    span = key_span(context.tree, path)
    keys: Sequence[str] = given.split(", ") if given else []
    labels: list[Label] = []
    if len(keys) > 1:
        span, *others = [key_span(context.tree, (*path, key)) for key in keys]
        labels = [Label(other, "and here") for other in others]
    preset, helps = context.with_preset(span, (*path, choices.split(", ")[0]))
    words = " and ".join(f"`{key}`" for key in keys) or "none of them"
    facts = {"parent": parent_words(path, context), "found": words, "choices": choices}
    return diagnose("FR0106", span, also=(*labels, *preset), helps=helps, **facts)


def _wrong_type(path: Path, context: Context) -> Diagnostic:
    node = context.node(path)
    annotation = annotation_at(context.document, context.tree, path)
    words = expected(annotation)
    help_ = _retyped(path, annotation, words, context) or _indented(path, context)
    preset, helps = context.with_preset(node.span, path)
    also = (*context.with_definition(path), *preset)
    helps = [help_, *helps] if help_ is not None else helps
    return diagnose("FR0102", node.span, also=also, helps=helps, expected=words, found=found(node))


def _indented(path: Path, context: Context) -> Help | None:
    """For a key with nothing under it because what follows stands beside it."""
    parent = descend(context.tree, path[:-1])
    if not isinstance(parent, MappingNode) or document_at(context.document, context.tree, path[:-1]) is None:
        return None  # names that the flow gives: none of them takes another
    keys = list(parent.entries)
    beside = [key for key in keys if _emptied((*path[:-1], key), context) == path[-1]]
    if not beside:
        return None
    named = ", ".join(f"`{key}`" for key in beside[:ALL_KEYS])
    return Help(text=f"indent what belongs under `{path[-1]}`: {named} {'stand' if beside[1:] else 'stands'} beside it")


def _retyped(path: Path, annotation: Any, words: str, context: Context) -> Help | None:
    """The line with the value in the wanted type, where only its spelling is at fault. Certain unless the value is used
    elsewhere too."""
    node = context.node(path)
    if not isinstance(node, ScalarNode) or node.kind is OriginKind.PYTHON:
        return None
    if words.startswith("a mapping") and node.plain and (glued := _GLUED.match(node.text)):
        line = context.line_with(node.span, f"{glued['key']}: {glued['value']}")
        return Help(text="put a space after the `:`", span=node.span, replacement=line)
    new = _spelling(node, options(annotation)) if words != "a list" else _listed(node)
    line = context.line_with(node.span, new) if new is not None else None
    if line is None:
        return None
    certain = not context.with_definition(path) and words != "a list"
    return Help(text=f"written as {words}", span=node.span, replacement=line, certain=certain)


def _listed(node: ScalarNode) -> str | None:
    """A text as the one entry of a list."""
    if not isinstance(node.value, str) or not node.value or "\n" in node.text:
        return None
    return f"[{node.text}]" if node.plain and not set(node.text) & set(",[]{}#") else f'["{node.value}"]'


def _spelling(node: ScalarNode, wanted: list[Any]) -> str | None:
    from flowrl.spec.yaml_tree import typed

    value, text = node.value, node.text
    if isinstance(value, str) and {int, float} & set(wanted):
        bare = text.replace("_", "")
        number = typed(bare)
        fits = isinstance(number, float | int) and not isinstance(number, bool)
        return bare if fits and (float in wanted or isinstance(number, int)) else None
    if isinstance(value, float) and int in wanted and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and bool in wanted:
        return {"on": "true", "yes": "true", "off": "false", "no": "false"}.get(text.lower())
    if str in wanted and text and not isinstance(value, str):
        return f'"{text}"'
    return None
