"""The graph as text: one line for each thing, what is inferred included, spans left out. `parse_graph` reads it back.

    graph "ppo"
    step prompts=32 samples_per_prompt=4 updates=2
    role "critic" kind="trainer" model="value" backend="fsdp" trainable=true
    op "critic.values" role="critic" method="values" granularity="sample"
      in "tokens" field="tokens" source="actor_infer.generate" dtype="i32"
      out "values" unit="token" dtype="f32"
      params type="forward" micro_batch_tokens=16384
    edge "actor_infer.generate -> critic.values" kind="data" from="actor_infer.generate" to="critic.values" …

A line is a word, a name, then `key=JSON` for what is not the default (of params: for all that is not empty). A line
that starts with `#` is a comment.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from flowrl.graph.graph import Graph, Op

_INDENT = "  "
_SPANS = ("span", "spans")
_LISTS = {
    "model": "models",
    "role": "roles",
    "op": "ops",
    "declared": "declared",
    "edge": "edges",
    "removed": "removed",
}
_NESTED = {"in": "inputs", "out": "outputs"}
_NAMES = {"model": "name", "role": "name", "op": "id", "declared": "id", "edge": "id", "removed": "id"}
_NESTED_NAMES = {"in": "slot", "out": "name"}
_HOW_IT_CAME = ("declared", "removed", "passes", "name")
"""What the digest leaves out: how a graph came to be, not what it computes."""


def print_graph(graph: Graph) -> str:
    """The canonical text, in the graph's own order. `parse_graph(print_graph(g))` is `g` without its spans."""
    return "\n".join(_lines(graph)) + "\n"


def parse_graph(text: str) -> Graph:
    """Read what `print_graph` wrote. ValueError names the line that is not understood."""
    tree: dict[str, Any] = {plural: [] for plural in _LISTS.values()}
    op: dict[str, Any] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, names, values = _read(line.strip(), number)
        if word in _LISTS:
            op = {_NAMES[word]: names[0], **values}
            tree[_LISTS[word]].append(op)
        elif word in _NESTED:
            op.setdefault(_NESTED[word], []).append({_NESTED_NAMES[word]: names[0], **values})
        elif word == "params":
            op["params"] = values
        elif word == "graph":
            tree["name"] = names[0]
        elif word == "passes":
            tree["passes"] = names
        elif word in ("step", "schedule"):
            tree[word] = values
        else:
            raise ValueError(f"line {number}: unknown word {word}")
    return msgspec.convert(tree, Graph)


def graph_digest(graph: Graph) -> str:
    """sha256 of what the graph computes. The order of its parts, spans, how edges were declared, what was removed or
    derived, and the graph's name do not enter; names of roles, data sets and labels do, since
    metrics and checkpoints are named by them."""
    plain = {key: value for key, value in _plain(graph).items() if key not in _HOW_IT_CAME}
    canonical = json.dumps(_unordered(_without(plain, ("origin", "derived"))), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def without_spans(graph: Graph) -> Graph:
    """The same graph, every span left out."""
    return msgspec.convert(_plain(graph), Graph)


def _plain(graph: Graph) -> dict[str, Any]:
    return cast("dict[str, Any]", _without(json.loads(msgspec.json.encode(graph)), _SPANS))


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    """Leave out `keys` of structs; what users wrote (args, extra, inline) is kept as it is."""
    if isinstance(value, list):
        return [_without(item, keys) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    mapping = cast("dict[str, Any]", value)
    return {k: v if k in _USERS else _without(v, keys) for k, v in mapping.items() if k not in keys}


_USERS = ("args", "extra", "inline", "lora", "mix", "sources")


def _unordered(value: dict[str, Any]) -> dict[str, Any]:
    """Sort the lists whose order means nothing."""
    ops = [
        {**op, "inputs": _sorted(_without(op["inputs"], ("chosen",))), "outputs": _sorted(op["outputs"])}
        for op in cast("list[dict[str, Any]]", value["ops"])
    ]
    edges = [{**edge, "fields": sorted(edge["fields"])} for edge in cast("list[dict[str, Any]]", value["edges"])]
    lists = {"models": value["models"], "roles": value["roles"], "ops": ops, "edges": edges}
    return {**value, **{key: _sorted(items) for key, items in lists.items()}}


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {_json(graph.name)}"
    yield " ".join(("passes", *map(_json, graph.passes)))
    yield _line("step", graph.step)
    yield _line("schedule", graph.schedule)
    for word, plural in _LISTS.items():
        for item in getattr(graph, plural):
            yield _line(word, item, _NAMES[word])
            if isinstance(item, Op):
                yield from _op_lines(item)


def _op_lines(op: Op) -> Iterator[str]:
    yield from (_INDENT + _line("in", input, "slot") for input in op.inputs)
    yield from (_INDENT + _line("out", field, "name") for field in op.outputs)
    if op.params is not None:
        yield _INDENT + _line("params", op.params, whole=True)


def _line(word: str, value: msgspec.Struct, name: str | None = None, whole: bool = False) -> str:
    """`word`, the value of field `name`, then the fields that differ from their defaults (`whole`: all of them)."""
    config = type(value).__struct_config__
    parts = [word]
    if name is not None:
        parts.append(_json(getattr(value, name)))
    if config.tag is not None:
        parts.append(f"type={_json(config.tag)}")
    for field in _fields(type(value)):
        held = getattr(value, field.name)
        if field.name in (name, *_SPANS, *_OWN_LINES) or (held == _default(field) and not (whole and held)):
            continue
        parts.append(f"{field.encode_name}={_json(_without(json.loads(msgspec.json.encode(held)), _SPANS))}")
    return " ".join(parts)


@functools.cache
def _fields(of: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """msgspec works them out anew each time, which takes longer than all the rest of a line."""
    return msgspec.structs.fields(of)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


_OWN_LINES = ("inputs", "outputs", "params")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": "))


def _read(line: str, number: int) -> tuple[str, list[str], dict[str, Any]]:
    decoder = json.JSONDecoder()
    word, _, rest = line.partition(" ")
    names: list[str] = []
    values: dict[str, Any] = {}
    position = 0
    while position < len(rest):
        if rest[position] == " ":
            position += 1
            continue
        key, position = _key(rest, position)
        try:
            value, position = decoder.raw_decode(rest, position)
        except json.JSONDecodeError as fault:
            raise ValueError(f"line {number}: {fault}") from fault
        if key is None:
            names.append(value)
        else:
            values[key] = value
    return word, names, values


def _key(rest: str, position: int) -> tuple[str | None, int]:
    """The `key=` at `position` and where its value starts; no key before a name."""
    if rest[position] == '"':
        return None, position
    end = rest.index("=", position)
    return rest[position:end], end + 1
