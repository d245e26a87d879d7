"""Templates and environments that the user wrote: whether the file is there, and the class, and takes its `args`.

Takes a stage and what a value names, keeps the problem in the stage. Python is read by its syntax tree and never run.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from os.path import isfile
from pathlib import Path

from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.user_functions import Definition, Signature, check_call, definitions, parameters, parsed
from flowrl.diag.diagnostic import Diagnostic, Help
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.schema import EnvRole


def check_template(stage: Stage, file: str, *path: str) -> None:
    """FR0261 for a template without a file; `path` is where the flow names it. What stands in it is left to the run."""
    if not isfile(Path(stage.folder) / file):
        span = stage.span(*path)
        stage.refuse("FR0261", span, _near_files(stage, span, file), file=file, folder=stage.folder)


def check_env(stage: Stage, name: str, role: EnvRole) -> None:
    """FR0262 for no file, FR0263 for no class, FR0214 for `args` that the class does not take; `LIBRARY:ID` is left
    to the run."""
    span = stage.span("roles", name, "env")
    place, _, wanted = role.env.rpartition(":")
    if role.env.endswith(".py"):
        place, wanted = role.env, ""
    if not (place and (wanted or place.endswith(".py"))):
        fix = Help(text=f"write `FILE.py:{wanted or 'CLASS'}` or `LIBRARY:ID`")
        stage.refuse("FR0262", span, [fix], file=role.env, folder=stage.folder)
    elif not place.endswith(".py"):
        return
    elif not isfile(Path(stage.folder) / place):
        stage.refuse("FR0262", span, _near_files(stage, span, place), file=place, folder=stage.folder)
    else:
        _check_class(stage, name, role, place, wanted)


def _check_class(stage: Stage, name: str, role: EnvRole, place: str, wanted: str) -> None:
    span = stage.span("roles", name, "env")
    tree = parsed(place, stage.folder, span)
    if isinstance(tree, Diagnostic):
        stage.problems.append(tree)
        return
    known = definitions(tree)
    found = known.get(wanted)
    if isinstance(found, ast.ClassDef):
        signature = _constructor(found, known)
        if signature is not None:
            _check_args(stage, name, role, wanted, signature)
    elif not isinstance(found, str):  # an import or an assignment may well be a class
        _refuse_class(stage, span, place, wanted, known)


def _refuse_class(stage: Stage, span: Span | None, place: str, wanted: str, known: Mapping[str, Definition]) -> None:
    classes = [each for each, made in known.items() if isinstance(made, ast.ClassDef) and not each.startswith("_")]
    problem = f"`{place}` has no class `{wanted}`"
    if wanted in known:
        problem = f"`{wanted}` of `{place}` is a function, not a class"
    helps = [
        stage.edit(f"a class with a near name exists: `{place}:{each}`", span, f"{place}:{wanted}", f"{place}:{each}")
        for each in near_names(wanted, classes)[:1]
    ]
    if not wanted:
        problem = f"`{place}` is a file, and no class in it is named"
        helps = [stage.edit(f"write `{place}:{each}`", span, place, f"{place}:{each}") for each in classes[:1]]
    stage.refuse("FR0263", span, helps, problem=problem, known=", ".join(classes) or "it has none")


def _constructor(made: ast.ClassDef, known: Mapping[str, Definition], below: tuple[str, ...] = ()) -> Signature | None:
    """The parameters of `__init__`, also of one inherited within the file; None where the tree does not tell them."""
    own = definitions(made)
    init = own.get("__init__")
    if isinstance(init, ast.FunctionDef):
        places = (*init.args.posonlyargs, *init.args.args)
        plain = bool(places) and len(init.args.posonlyargs) <= 1 and not init.decorator_list and not made.keywords
        return parameters(init, bound=0 if init.args.posonlyargs else 1) if plain else None
    if init is not None or "__new__" in own or made.decorator_list or made.keywords or made.name in below:
        return None
    names = [ast.unparse(base) for base in made.bases]
    bases = [known.get(name) for name in names if name != "object"]
    if not bases:
        return Signature(required=(), text=f"class {made.name}")
    # Only the first base is sure to come first: past one without `__init__` the order of bases would have to be told.
    if len(bases) == 1 and isinstance(bases[0], ast.ClassDef):
        return _constructor(bases[0], known, (*below, made.name))
    return None


def _check_args(stage: Stage, name: str, role: EnvRole, wanted: str, signature: Signature) -> None:
    unknown = [each for each in role.args if each not in (*signature.required, *signature.optional)]
    if not unknown or signature.takes_any:
        span = stage.written("roles", name, "args") or stage.span("roles", name, "env")
        problem = check_call(signature, role.args, wanted, span)
        if problem is not None:
            stage.problems.append(problem)
        return
    for each in unknown:
        span = stage.key_span("roles", name, "args", each)
        helps = [
            stage.edit(f"a parameter with a near name exists: `{near}`", span, each, near)
            for near in near_names(each, (*signature.required, *signature.optional))[:1]
        ]
        problem = f"has no parameter `{each}`"
        stage.refuse("FR0214", span, helps, name=wanted, problem=problem, signature=signature.text)


def _near_files(stage: Stage, span: Span | None, file: str) -> list[Help]:
    """Files of the same folder and kind with a near name."""
    path = Path(stage.folder) / file
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix == path.suffix and each.is_file()]
    except OSError:
        return []
    near = [file.removesuffix(path.name) + name for name in near_names(path.name, names)]
    return [stage.edit(f"a file with a near name exists: `{near[0]}`", span, file, near[0])] if near else []
