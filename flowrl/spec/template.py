"""Jinja2 inside scalars: the file's `vars` are rendered into scalars after YAML is parsed.

Sandboxed and small: expressions and `{% if %}` only, a few filters and string methods, undefined names are errors. A
scalar that is one expression keeps the type of its value; other unquoted scalars are typed by their rendered text.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from jinja2 import StrictUndefined, Undefined, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from flowrl.diag.diagnostic import Diagnostic, Help, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.limits import LONGEST_TEMPLATE
from flowrl.spec.template_words import malformed, unevaluable
from flowrl.spec.tree import Entry, MappingNode, Node, Plain, ScalarNode, SequenceNode, may_be_template, subspan
from flowrl.spec.yaml_tree import LONE_SURROGATE, typed

LONGEST_TEXT = 100_000
"""Characters that a template may make, and the largest number that it may raise or repeat to."""

_FILTERS = (
    "abs", "default", "first", "float", "int", "join", "last", "length", "list", "lower", "max", "min", "replace",
    "round", "sort", "string", "sum", "trim", "upper",
)  # fmt: skip
_TEXT_METHODS = frozenset(
    {"endswith", "lower", "lstrip", "removeprefix", "removesuffix", "rsplit", "rstrip", "split", "startswith", "strip",
     "title", "upper"}
)  # fmt: skip
_MARKS = re.compile(r"\A[-+]|[-+]\Z")
"""Jinja2's marks for white space, which touch the braces; a minus of the expression does not."""
_BLOCKS = {"Assign": "set", "AssignBlock": "set", "CallBlock": "call", "FilterBlock": "filter", "FromImport": "from"}
"""How those are written whose class has another name."""
_ALLOWED_BLOCKS = (nodes.Output, nodes.If)

Report = Callable[[Diagnostic], None]


class _Environment(SandboxedEnvironment):
    """Refuses calls but those of a few string methods, and operators that could make huge values."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(getattr(obj, "__self__", None), str) and getattr(obj, "__name__", "") in _TEXT_METHODS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not (_is_number(left) and _is_number(right)):
            raise SecurityError(f"`{operator}` takes two numbers")
        if operator == "**" and (abs(right) > 64 or abs(left) > LONGEST_TEXT):
            raise SecurityError("the power is too large")
        return super().call_binop(context, operator, left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


@functools.cache
def _environment() -> _Environment:
    made = _Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    filters = cast("dict[str, Any]", vars(made)["filters"])
    made.filters = {name: filters[name] for name in _FILTERS}
    made.globals = {}
    return made


def has_template(node: Node) -> bool:
    return isinstance(node, ScalarNode) and may_be_template(node)


def render_tree(node: Node, scope: Mapping[str, Any], report: Report) -> Node:
    """The tree with every scalar rendered. What cannot be is reported (FR0115 to FR0117) and stays."""
    if isinstance(node, ScalarNode):
        return _render_scalar(node, scope, report) if has_template(node) else node
    if isinstance(node, SequenceNode):
        return replace(node, items=tuple(render_tree(item, scope, report) for item in node.items))
    entries = {key: replace(entry, node=render_tree(entry.node, scope, report)) for key, entry in node.entries.items()}
    return replace(node, entries=entries)


def undeclared(node: Node) -> set[str]:
    """Names that the templates below `node` use; none for a template that cannot be parsed."""
    if isinstance(node, MappingNode):
        return {name for entry in node.entries.values() for name in undeclared(entry.node)}
    if isinstance(node, SequenceNode):
        return {name for item in node.items for name in undeclared(item)}
    if not has_template(node) or len(str(node.value)) > LONGEST_TEMPLATE:
        return set()
    try:
        return meta.find_undeclared_variables(_environment().parse(str(node.value)))
    except Exception:  # told when the template is rendered
        return set()


def _render_scalar(node: ScalarNode, scope: Mapping[str, Any], report: Report) -> Node:
    text = str(node.value)
    parsed, names = _parse(node, text, report)
    if parsed is None:
        return node
    missing = sorted(names - set(scope))
    for name in missing:
        report(_undefined(node, text, name, scope))
    if missing:
        return node
    try:
        return _evaluate(node, text, parsed, scope)
    except Exception as error:  # whatever an expression of the user's may raise
        report(diagnose("FR0117", node.span, problem=unevaluable(error)))
    return node


def _parse(node: ScalarNode, text: str, report: Report) -> tuple[nodes.Template | None, set[str]]:
    """The template and the names that it uses."""
    if len(text) > LONGEST_TEMPLATE:
        words = f"a template has {LONGEST_TEMPLATE:,} characters at most, this one has {len(text):,}"
        report(diagnose("FR0116", node.span, problem=words))
        return None, set()
    try:
        parsed = _environment().parse(text)
        names = meta.find_undeclared_variables(parsed)
    except Exception as error:  # jinja's parser lets Python's own limits through: digits, depth
        report(diagnose("FR0116", node.span, problem=malformed(error)))
        return None, set()
    for block in parsed.find_all(nodes.Stmt):
        if not isinstance(block, _ALLOWED_BLOCKS):
            kind = type(block).__name__
            words = f"`{{% {_BLOCKS.get(kind, kind.lower())} %}}` is not part of the language"
            report(diagnose("FR0116", node.span, problem=words))
            return None, set()
    return parsed, names


def _evaluate(node: ScalarNode, text: str, parsed: nodes.Template, scope: Mapping[str, Any]) -> Node:
    if _is_one_expression(parsed, text):
        value: Any = _environment().compile_expression(_MARKS.sub("", text[2:-2]).strip(), undefined_to_none=False)(
            **scope
        )
        return _located(value, node)
    rendered = _environment().from_string(parsed).render(**scope)
    if LONE_SURROGATE.search(rendered):
        raise SecurityError("the text has half of a character")
    if len(rendered) > LONGEST_TEXT:
        raise SecurityError(f"the text has more than {LONGEST_TEXT:,} characters")
    return replace(node, value=typed(rendered) if node.plain else rendered)


def _is_one_expression(parsed: nodes.Template, text: str) -> bool:
    if not (text.startswith("{{") and text.endswith("}}") and len(parsed.body) == 1):
        return False
    output = parsed.body[0]
    return isinstance(output, nodes.Output) and len(output.nodes) == 1 and not _is_text(output.nodes[0])


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData)


def _located(value: Any, node: ScalarNode) -> Node:
    """A value of an expression, all of it at the place of the expression."""
    if isinstance(value, Undefined):
        operator.truth(value)  # raises UndefinedError with jinja's words
    if isinstance(value, str) and LONE_SURROGATE.search(value):
        raise SecurityError("the text has half of a character")
    if value is None or isinstance(value, str | int | float | bool):
        plain: Plain = value
        return replace(node, value=plain)
    if isinstance(value, list | tuple):
        items = tuple(_located(item, node) for item in value)  # pyright: ignore[reportUnknownVariableType]
        return SequenceNode(items=items, span=node.span, kind=node.kind)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        entries = {str(key): Entry(str(key), node.span, _located(item, node), node.kind) for key, item in pairs.items()}
        return MappingNode(entries=entries, span=node.span, kind=node.kind)
    raise SecurityError("the expression gives a value that no key takes")


def _undefined(node: ScalarNode, text: str, name: str, scope: Mapping[str, Any]) -> Diagnostic:
    span = _name_span(node, text, name)
    near = near_names(name, scope)
    if near:
        text_ = f"a variable with a near name exists: `{near[0]}`"
        fixed = Respelt(text=text_, span=span, old=name, new=near[0])
    elif scope:
        fixed = Help(text=f"the variables are {', '.join(f'`{known}`' for known in sorted(scope))}")
    else:
        fixed = Help(text=f"define it: `vars: {{{name}: …}}`")
    return diagnose("FR0115", span, helps=[fixed], name=name)


def _name_span(node: ScalarNode, text: str, name: str) -> Span:
    start = text.find(name)
    return subspan(node, start, start + len(name)) if start >= 0 and text == node.text else node.span
