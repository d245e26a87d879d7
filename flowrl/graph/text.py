"""The graph as text: one line for each thing, what is inferred included, spans left out. `parse_graph` reads it back.

    graph "ppo"
    step prompts=32 samples_per_prompt=4 updates=2
    role "critic" kind="trainer" model="value" backend="fsdp" trainable=true
    op "critic.values" role="critic" method="values" granularity="sample"
      in "tokens" field="tokens" source="actor_infer.generate" dtype="i32"
      out "values" unit="token" dtype="f32"
      params type="forward" micro_batch_tokens=16384
    edge "actor_infer.generate -> critic.values" kind="data" from="actor_infer.generate" to="critic.values" …

A line is a word, names, then `key=JSON` for what is not the default. `#` starts a comment line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from flowrl.graph.graph import Graph

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
    return "\n".join(_lines(_plain(graph))) + "\n"


def parse_graph(text: str) -> Graph:
    """Read what `print_graph` wrote. ValueError names the line that is not understood."""
    tree: dict[str, Any] = {plural: [] for plural in _LISTS.values()}
    op: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), start=1):
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
    derived, and the graph's name do not enter."""
    plain = {key: value for key, value in _plain(graph).items() if key not in _HOW_IT_CAME}
    canonical = json.dumps(_unordered(_without(plain, ("origin", "derived", "chosen"))), sort_keys=True)
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


_USERS = ("args", "extra", "inline", "lora", "mix")


def _unordered(value: dict[str, Any]) -> dict[str, Any]:
    """Sort the lists whose order means nothing."""
    ops = [
        {**op, "inputs": _sorted(op["inputs"]), "outputs": _sorted(op["outputs"])}
        for op in cast("list[dict[str, Any]]", value["ops"])
    ]
    edges = [{**edge, "fields": sorted(edge["fields"])} for edge in cast("list[dict[str, Any]]", value["edges"])]
    lists = {"models": value["models"], "roles": value["roles"], "ops": ops, "edges": edges}
    return {**value, **{key: _sorted(items) for key, items in lists.items()}}


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _lines(tree: dict[str, Any]) -> Iterator[str]:
    yield _line("graph", [tree["name"]], {})
    yield _line("passes", tree["passes"], {})
    yield _line("step", [], tree["step"])
    yield _line("schedule", [], tree["schedule"])
    for word, plural in _LISTS.items():
        for item in tree[plural]:
            yield from _item(word, item)


def _item(word: str, item: dict[str, Any]) -> Iterator[str]:
    own = {k: v for k, v in item.items() if k not in ("inputs", "outputs", "params", _NAMES[word])}
    yield _line(word, [item[_NAMES[word]]], own)
    for nested, plural in _NESTED.items():
        for part in item.get(plural, ()):
            rest = {k: v for k, v in part.items() if k != _NESTED_NAMES[nested]}
            yield _INDENT + _line(nested, [part[_NESTED_NAMES[nested]]], rest)
    if item.get("params") is not None:
        yield _INDENT + _line("params", [], item["params"])


def _line(word: str, names: list[str], values: dict[str, Any]) -> str:
    pairs = (f"{key}={_json(value)}" for key, value in values.items() if value not in _EMPTY)
    return " ".join((word, *map(_json, names), *pairs))


_EMPTY: tuple[Any, ...] = (None, [], {})
"""Not written: no field has another default than these where it may hold one of them."""


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
