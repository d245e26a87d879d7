"""Functions (and classes) that the user wrote, read by their syntax tree and never run.

Takes `FILE.py:NAME` and the flow's folder, gives the function's parameters: a reward's inputs are its parameter names.
Everything that keeps them from being read is a diagnostic of the FR021x codes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from os.path import isfile
from pathlib import Path
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Help, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.graph.signatures import BUILTIN_FUNCTIONS, BUILTIN_REWARDS

BUILTIN_PREFIX = "flowrl:"

_Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = _Function | ast.ClassDef | str
"""In words where it is neither a function nor a class that stands there itself."""


@dataclass(frozen=True, slots=True)
class Signature:
    """`required` and `optional` (those with a default) are parameter names in order; `text` is the `def` line."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    takes_any: bool = False
    """Whether `**kwargs` takes any other argument."""
    args_only: tuple[str, ...] = ()
    """Required parameters that are never inputs (of functions that ship with FlowRL)."""
    text: str = ""


def is_function(source: str) -> bool:
    """Whether a `source` names a function of a Python file rather than a data file."""
    return source.rpartition(":")[0].endswith(".py")


def signature_of(
    function: str, folder: str, span: Span | None, read: dict[str, ast.Module] | None = None
) -> Signature | Diagnostic:
    """The parameters of `FILE.py:NAME` or `flowrl:NAME`. `read` keeps the files of the folder that were read already,
    for a flow with many functions in one."""
    place, _, name = function.rpartition(":")
    if function.startswith(BUILTIN_PREFIX):
        return _builtin(name, span)
    if not place.endswith(".py"):
        return _no_file_named(function, name, folder, span)
    tree = parsed(place, folder, span) if read is None or place not in read else read[place]
    if isinstance(tree, Diagnostic):
        return tree
    if read is not None:
        read[place] = tree
    definition = definitions(tree).get(name)
    if definition is None:
        return _not_defined(tree, place, name, span)
    if isinstance(definition, _Function):
        return _signature(definition, place, span)
    problem = f"is not a `def` but {definition if isinstance(definition, str) else 'a class'}"
    return diagnose("FR0213", span, file=place, name=name, problem=problem)


def inputs_of(
    signature: Signature, args: Mapping[str, Any], name: str, span: Span | None
) -> tuple[tuple[str, ...], tuple[str, ...]] | Diagnostic:
    """The function's required and optional inputs: its parameters without those that `args` give."""
    missing = [parameter for parameter in signature.args_only if parameter not in args]
    problem = _needs(signature, missing, name, span) if missing else _misfit(signature, args, name, span)
    if problem is not None:
        return problem
    required = tuple(parameter for parameter in signature.required if parameter not in args)
    return required, tuple(parameter for parameter in signature.optional if parameter not in args)


def check_call(signature: Signature, args: Mapping[str, Any], name: str, span: Span | None) -> Diagnostic | None:
    """Whether `args` alone are a call of the function (a data source has no other inputs)."""
    missing = [parameter for parameter in signature.required if parameter not in args]
    return _needs(signature, missing, name, span) if missing else _misfit(signature, args, name, span)


def _needs(signature: Signature, missing: Iterable[str], name: str, span: Span | None) -> Diagnostic:
    named = ", ".join(f"`{parameter}`" for parameter in missing)
    fix = Help(text=f"give {named} in `args:`")
    return diagnose("FR0214", span, helps=[fix], name=name, problem=f"needs {named}", signature=signature.text)


def _misfit(signature: Signature, args: Mapping[str, Any], name: str, span: Span | None) -> Diagnostic | None:
    known = (*signature.required, *signature.optional)
    unknown = [argument for argument in args if argument not in known]
    if not unknown or signature.takes_any:
        return None
    near = near_names(unknown[0], known)
    text = "a parameter with a near name exists: `{}`"
    helps = [Respelt(text=text.format(new), span=span, old=unknown[0], new=new) for new in near[:1]]
    problem = f"has no parameter `{unknown[0]}`"
    return diagnose("FR0214", span, helps=helps, name=name, problem=problem, signature=signature.text)


def _builtin(name: str, span: Span | None) -> Signature | Diagnostic:
    shipped = {**BUILTIN_REWARDS, **BUILTIN_FUNCTIONS}
    known = shipped.get(name)
    if known is None:
        return _not_found(name, "flowrl", shipped, span)
    text = ", ".join((*known.fields, *known.args, *(f"{argument}=…" for argument in known.optional_args)))
    required = (*known.fields, *known.args)
    return Signature(required, known.optional_args, args_only=known.args, text=f"def {name}({text})")


def parsed(place: str, folder: str, span: Span | None) -> ast.Module | Diagnostic:
    """The tree of a Python file; FR0210 where there is none, FR0212 where it is no Python."""
    path = Path(folder) / place
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return diagnose("FR0212", span, file=place, line=1, problem="it is not UTF-8 text")
    except OSError:
        return diagnose("FR0210", span, helps=_near_file(path, place, span), file=place, folder=folder)
    try:
        return _tree(text, place)
    except (SyntaxError, ValueError) as fault:
        line = getattr(fault, "lineno", None) or 1
        problem = getattr(fault, "msg", None) or str(fault)
        return diagnose("FR0212", span, file=place, line=line, problem=problem)


@lru_cache(maxsize=64)
def _tree(text: str, place: str) -> ast.Module:
    """Of one file for all functions that a flow names in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, filename=place)


def _no_file_named(function: str, name: str, folder: str, span: Span | None) -> Diagnostic:
    """`FILE.py:NAME` is not what stands there: the function is missing, or the file."""
    if not function.endswith(".py"):
        module, _, last = function.rpartition(".")
        file = f"{module.replace('.', '/')}.py"
        there = ":" not in function and bool(module) and isfile(Path(folder) / file)
        fix = Help(text=f"write `{file}:{last}`" if there else f"write `FILE.py:{name or 'NAME'}`")
        return diagnose("FR0210", span, helps=[fix], file=function, folder=folder)
    tree = parsed(function, folder, span)
    if isinstance(tree, Diagnostic):
        return tree
    known = _functions(tree)
    named = [f"{function}:{each}" for each in known[:1]]
    helps = [Respelt(text=f"write `{new}`", span=span, old=function, new=new) for new in named]
    problem = f"`{function}` is a file, and no function in it is named"
    return diagnose("FR0211", span, helps=helps, problem=problem, known=", ".join(known) or "it has none")


def _near_file(path: Path, place: str, span: Span | None) -> list[Help]:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    except OSError:
        return []
    found = [place.removesuffix(path.name) + name for name in near_names(path.name, names)[:1]]
    text = "a file with a near name exists: `{}`"
    return [Respelt(text=text.format(new), span=span, old=place, new=new) for new in found]


@lru_cache(maxsize=64)
def definitions(tree: ast.Module | ast.ClassDef) -> Mapping[str, Definition]:
    """The last definition of each name at the top level of a file or class."""
    found: dict[str, Definition] = {}
    for statement in _top_level(tree.body):
        if isinstance(statement, _Function | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= dict.fromkeys(_assigned(statement), "an assignment")
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            found |= dict.fromkeys(_imported(statement), "an import")
    return found


def _top_level(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Statements that run when the file is imported, also within `if` and `try`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(statement, part, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _top_level(handler.body)


def _assigned(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _imported(statement: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name for alias in statement.names}


def _not_defined(tree: ast.Module, place: str, name: str, span: Span | None) -> Diagnostic:
    return _not_found(name, place, _functions(tree), span)


def _functions(tree: ast.Module) -> list[str]:
    """Functions that a flow may name, in the order of the file."""
    names = (statement.name for statement in _top_level(tree.body) if isinstance(statement, _Function))
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _not_found(name: str, place: str, known: Iterable[str], span: Span | None) -> Diagnostic:
    names = list(known)
    near = near_names(name, names)
    text = "a function with a near name exists: `{}`"
    found = [f"{place}:{new}" for new in near[:1]]
    helps = [Respelt(text=text.format(new), span=span, old=f"{place}:{name}", new=new) for new in found]
    problem = f"`{place}` has no function `{name}`"
    return diagnose("FR0211", span, helps=helps, problem=problem, known=", ".join(names) or "it has none")


def _signature(function: _Function, place: str, span: Span | None) -> Signature | Diagnostic:
    arguments = function.args
    if arguments.posonlyargs:
        problem = f"takes `{arguments.posonlyargs[0].arg}` by position only; fields are given by name"
        return diagnose("FR0213", span, file=place, name=function.name, problem=problem)
    if arguments.vararg is not None and not arguments.args and not arguments.kwonlyargs:
        problem = f"takes `*{arguments.vararg.arg}` only"
        return diagnose("FR0213", span, file=place, name=function.name, problem=problem)
    return parameters(function)


def parameters(function: _Function, bound: int = 0) -> Signature:
    """Its parameters that are given by name, without the first `bound` ones (`self`)."""
    arguments = function.args
    plain = [argument.arg for argument in arguments.args]
    with_default = plain[len(plain) - len(arguments.defaults) :]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        plain.append(argument.arg)
        with_default += [argument.arg] if default is not None else []
    return Signature(
        required=tuple(name for name in plain[bound:] if name not in with_default),
        optional=tuple(with_default),
        takes_any=arguments.kwarg is not None,
        text=f"def {function.name}({ast.unparse(arguments)})",
    )
