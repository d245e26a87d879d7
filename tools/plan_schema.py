"""Writes docs/reference/plan.md and plan.schema.json, the format of plan.json, from the structs that a plan is made of.

    python tools/plan_schema.py            # write them
    python tools/plan_schema.py --check    # exit 1 and name those that are not as written

Every field is listed with its type, default and docstring; nothing is kept by hand but the introduction.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import inspect as types

from flowrl.plan.io import LARGEST_BYTES
from flowrl.plan.plan import PLAN_VERSION, Plan

ROOT = Path(__file__).resolve().parents[1]

HEAD = f"""# The plan file

`flowrl plan FLOW -o plan.json` writes it, `flowrl plan FLOW --format json` prints it, `flowrl run plan.json` reads
nothing else. This is version {PLAN_VERSION} of the format; [plan.schema.json](plan.schema.json) is its JSON Schema.

- Canonical: keys sorted, two spaces of indent, one newline at the end, no clock times. The same flow, cluster and
  FlowRL give the same bytes.
- Strict: another version, a missing field, a field of another type or one that is not listed here is refused (FR0701
  to FR0706), and so is a file over {LARGEST_BYTES // 2**20} MiB. Reading a plan executes nothing.
- Whole: `digests.plan` is the sha256 of all else, so that a file that was edited is refused (FR0734).
- Kept with its flow: `flowrl run` refuses a plan whose flow, cluster, profile, code or files have moved since, and says
  what differs, as `flowrl diff` does ([plan-diff](../plan-diff.md)).
- A digest (`digests`, `sources`) is the sha256 of what a value means: places in source files, comments and the order of
  roles, ops and edges do not count.
- Every number in `memory` and `estimate` has ledger lines. The `value` of a line is its `formula` (`+ - * / //`, `max`,
  `min`, `ceil`) over its `inputs`; lines in bytes are rounded up, and those of one `memory` entry add up to its
  `peak_bytes`. `origins` says where each input came from.
"""


def page() -> str:
    """docs/reference/plan.md: one section per struct, the plan first."""
    return HEAD + "".join(_section(cls) for cls in structs(Plan))


def schema() -> str:
    """docs/reference/plan.schema.json."""
    plain = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Plan)}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def structs(top: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Every struct that a value of `top` may hold, in the order of first mention."""
    found: dict[type[msgspec.Struct], None] = {top: None}
    queue = [top]
    while queue:
        for field in _fields(queue.pop(0)):
            for inner in _inner(field.type):
                if inner not in found:
                    found[inner] = None
                    queue.append(inner)
    return list(found)


def _fields(cls: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    return info.fields


def _inner(kind: types.Type) -> Iterator[type[msgspec.Struct]]:
    match kind:
        case types.StructType(cls=cls):
            yield cls
        case types.UnionType(types=parts):
            for part in parts:
                yield from _inner(part)
        case types.VarTupleType(item_type=item) | types.DictType(value_type=item):
            yield from _inner(item)
        case _:
            return


def _section(cls: type[msgspec.Struct]) -> str:
    node = _definition(cls)
    told, config = _docstrings(node), cls.__struct_config__
    rows = [_row(field, told.get(field.name, "")) for field in _fields(cls)]
    if config.tag is not None:
        rows.insert(0, f"| `{config.tag_field or 'type'}` (required) | `{config.tag}` | Which of the forms it is. |")
    table = "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
    about = ast.get_docstring(node)
    return f"\n## {cls.__name__}\n\n" + (f"{about}\n\n" if about else "") + f"{table}\n"


def _row(field: types.Field, told: str) -> str:
    name = f"`{field.encode_name}`" + (" (required)" if field.required else "")
    return f"| {name} | {_type(field.type)} | {_meaning(field, told)} |"


def _meaning(field: types.Field, told: str) -> str:
    text = " ".join(told.split()).replace("|", "\\|")
    default = field.default
    if field.required or default in (msgspec.NODEFAULT, None, ()):
        return text
    return f"{text} Default {json.dumps(msgspec.to_builtins(default))}.".strip()


def _type(kind: types.Type) -> str:
    match kind:
        case types.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case types.UnionType(types=parts):
            return " or ".join(_type(part) for part in parts)
        case types.VarTupleType(item_type=item):
            return f"list of {_type(item)}"
        case types.DictType(value_type=item):
            return f"mapping of {_type(item)}"
        case types.EnumType(cls=cls):
            return ", ".join(f"`{member.value}`" for member in cls)
        case _:
            return _PLAIN[type(kind)]


_PLAIN: Mapping[type[types.Type], str] = {
    types.StrType: "string",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "boolean",
    types.NoneType: "null",
    types.AnyType: "any",
}


def _definition(cls: type[msgspec.Struct]) -> ast.ClassDef:
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    return node


def _docstrings(node: ast.ClassDef) -> dict[str, str]:
    """The string that stands under each field in the source."""
    found: dict[str, str] = {}
    for field, after in pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[field.target.id] = after.value.value
    return found


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/plan.md": page,
    "docs/reference/plan.schema.json": schema,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not as written")
    check = parser.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            sys.stdout.write(f"stale: {name} (python tools/plan_schema.py writes it)\n")
            stale = 1
        if not check:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
