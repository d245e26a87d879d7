"""What a key of the language is: found by its path in the JSON Schema, which is made from the documents.

step.refill.max_rounds      as it stands in a flow
roles.critic.update.loss    the name of a role, data set, model … may be any
update.loss, temperature    the end of a path is enough
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from flowrl.diag.near import near_names

Json = Mapping[str, Any]
ANY = "*"
"""In a path: a name that the user chose, or the place in a list."""
MOST_SHOWN = 6
_UNITS = ("tokens", "seconds", "steps", "updates", "bytes", "prompts", "turns", "rounds", "gpus", "nodes")
_TEMPLATE = "Template"
_DEFAULT = re.compile(r"\bDefault:? (.*?)\.(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Key:
    """`path` has `*` for names that the user chose. `default` is in the words of the documentation."""

    path: str
    type: str
    unit: str | None
    default: str | None
    doc: str
    keys: tuple[str, ...] = ()
    """Of a mapping: what may stand in it."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def find_keys(schema: Json, asked: str) -> tuple[Key, ...]:
    """The keys that `asked` may mean, the shortest paths first, each meaning once; empty if there is none."""
    wanted = tuple(part for part in asked.split(".") if part)
    ranked = [(rank, path, node) for path, node in _paths(schema) if (rank := _rank(path, wanted)) is not None]
    if not ranked:
        return ()
    best = min(rank for rank, _, _ in ranked)
    found: dict[tuple[str, str, str | None], Key] = {}
    for rank, path, node in sorted(ranked, key=lambda each: (each[0], len(each[1]), _chosen(*each[:2]), each[1])):
        key = _key(schema, path, node)
        if rank == best:
            found.setdefault((key.type, key.doc, key.default), key)
    return tuple(found.values())[:MOST_SHOWN]


def _chosen(rank: int, path: tuple[str, ...]) -> int:
    """Of equal answers: the path with the very names that were asked for, else the one that leaves names open."""
    return path.count(ANY) if rank == 0 else -path.count(ANY)


def near_keys(schema: Json, asked: str) -> list[str]:
    """Paths whose last key is near the last one asked for."""
    ends: dict[str, str] = {}
    for path, _ in _paths(schema):
        if path and path[-1] != ANY:
            shown = ".".join(path)
            ends[path[-1]] = min(ends.get(path[-1], shown), shown, key=len)
    return [ends[name] for name in near_names(asked.rpartition(".")[2], ends)]


def _rank(path: tuple[str, ...], wanted: tuple[str, ...]) -> int | None:
    """How well a path answers: 0 whole, 1 its end, 2 its end without chosen names, 3 as such a name; None: not."""
    if not wanted:
        return None
    whole = len(path) == len(wanted) and _fits(path, wanted)
    if path[-1] == ANY:
        return 3 if whole and len(path) > 1 else None
    if whole:
        return 0
    if len(path) > len(wanted) and _fits(path[-len(wanted) :], wanted):
        return 1
    plain = tuple(part for part in path if part != ANY)
    return 2 if plain[-len(wanted) :] == wanted else None


def _fits(path: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return all(have in (ANY, want) or _labelled(have, want) for have, want in zip(path, wanted, strict=True))


def _labelled(have: str, want: str) -> bool:
    return have.endswith("@LABEL") and want.startswith(have.removesuffix("LABEL"))


def _paths(schema: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every key of the language with its schema, depth first."""
    yield from _below(schema, schema, (), ())


def _below(schema: Json, node: Json, path: tuple[str, ...], seen: tuple[str, ...]) -> Iterator[tuple[Any, Json]]:
    for form, name in _forms(schema, node):
        if name in seen:
            continue
        within = (*seen, name) if name else seen
        children: list[tuple[str, Json]] = list(cast("Mapping[str, Json]", form.get("properties", {})).items())
        for pattern, child in cast("Mapping[str, Json]", form.get("patternProperties", {})).items():
            children.append((_labelled_name(pattern), child))
        for many in ("additionalProperties", "items"):
            if isinstance(form.get(many), Mapping) and form[many]:
                children.append((ANY, form[many]))
        for key, child in children:
            # `assume` names an op, ROLE.OP.
            here = (*path, key, ANY) if key == ANY and path[-1:] == ("assume",) else (*path, key)
            if _is_told(schema, child):
                yield here, child
                yield from _below(schema, child, here, within)


def _is_told(schema: Json, node: Json) -> bool:
    """Whether it says what a value is, and does not only narrow what another schema says."""
    return "description" in node or any("type" in form or "enum" in form for form, _ in _forms(schema, node))


def _labelled_name(pattern: str) -> str:
    """`^generate@…` → `generate@LABEL`."""
    return f"{pattern.removeprefix('^').partition('@')[0]}@LABEL"


def _forms(schema: Json, node: Json) -> Iterator[tuple[Json, str]]:
    """The schemas that a value of `node` may follow, references looked up; each with its definition's name."""
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        for form, inner in _forms(schema, schema["$defs"][name]):
            yield form, inner or name
        return
    parts = [part for union in ("anyOf", "oneOf") for part in node.get(union, [])]
    # A role that has its kind by name.
    parts += [node["else"]] if "else" in node else []
    if not parts or "properties" in node:
        yield node, ""
    for part in parts:
        yield from _forms(schema, part)


def _key(schema: Json, path: tuple[str, ...], node: Json) -> Key:
    forms = list(_forms(schema, node))
    keys = dict.fromkeys(key for form, _ in forms for key in (*form.get("properties", {}), *_patterns(form)))
    words = dict.fromkeys(word for form, name in forms if name != _TEMPLATE and (word := _type(schema, form)))
    words.pop("null", None)
    if any("enum" in form for form, _ in forms):
        words.pop("text", None)  # only a template may be any text there
    doc, default = _parted(" ".join(str(node.get("description") or _own_doc(forms)).split()))
    return Key(
        path=".".join(path).replace("@LABEL", "@*"),
        type=" or ".join(words) or "any",
        unit=next((unit for unit in _UNITS if re.search(rf"(^|_){unit}$", path[-1])), None),
        default=default or _default(node),
        doc=doc,
        keys=tuple(keys),
    )


def _parted(doc: str) -> tuple[str, str | None]:
    """The text without what it says of the default, and that."""
    found = _DEFAULT.search(doc)
    if found is None:
        return doc, None
    return f"{doc[: found.start()]} {doc[found.end() :]}".strip(), found.group(1)


def _patterns(form: Json) -> list[str]:
    return [_labelled_name(pattern) for pattern in form.get("patternProperties", {})]


def _own_doc(forms: list[tuple[Json, str]]) -> str:
    return " Or: ".join(dict.fromkeys(str(form["description"]) for form, _ in forms if "description" in form))


def _type(schema: Json, form: Json) -> str:
    if "enum" in form or "const" in form:
        return ", ".join(str(choice) for choice in form.get("enum", [form.get("const")]))
    kind = _kind(form)
    if kind == "array":
        inner = [_type(schema, each) for each, name in _forms(schema, form.get("items", {})) if name != _TEMPLATE]
        return f"list of {' or '.join(dict.fromkeys(filter(None, inner))) or 'any'}"
    if kind == "object":
        return "mapping"
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    told = [f"{words} {form[bound]:g}" for bound, words in bounds.items() if bound in form]
    return " ".join([{"string": "text"}.get(kind, kind), " and ".join(told)]).rstrip()


def _kind(form: Json) -> str:
    """The type's name. A template may stand in the place of any value, which goes without saying."""
    kinds = form.get("type", "")
    if isinstance(kinds, str):
        return kinds
    named = [str(kind) for kind in cast("list[str]", kinds) if kind != "null"]
    if len(named) > 1 and "pattern" in form:
        named.remove("string")
    return named[0] if named else ""


def _default(node: Json) -> str | None:
    if "default" not in node:
        return None
    default = node["default"]
    if default is None or default == [] or default == {}:
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)
