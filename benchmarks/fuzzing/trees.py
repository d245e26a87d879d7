"""Operations on the parsed tree: any key, value or edge is deleted, renamed, retyped, doubled, swapped or moved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from benchmarks.fuzzing.draft import Draft

Place = tuple[Any, Any]
"""A mapping or list, and the key or index in it."""
ARROWS = ("->", "=>", "<->")
OPS = (
    "generate", "log_probs", "values", "update", "score", "estimate", "select", "compare", "call", "reset", "step",
    "generate@val", "score@val", "update@x", "ask", "ask_pairs",
)  # fmt: skip
KEYS = (
    "kind", "model", "backend", "inputs", "engine", "on_error", "generate", "update", "optimizer", "estimator",
    "router",
    "combine", "judge", "sandbox", "function", "env", "max_turns", "rule", "by", "keep_top", "action", "args",
    "outputs",
    "unit", "max_lag", "refill", "lora", "mix", "tag", "order", "head", "gate", "vars", "use", "stages", "allow",
    "assume",
    "placement", "cluster", "include", "run", "schedule", "step", "data", "models", "roles", "edges", "frozen", "kl",
)  # fmt: skip

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parsed(text: str) -> dict[str, Any] | None:
    """The tree of a text, None where it has none."""
    try:
        tree = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def written(tree: Any, flow: bool | None) -> str:
    return yaml.dump(tree, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=10**6)


def places(tree: Any, depth: int = 0) -> Iterator[Place]:
    """Every place below `tree`."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        if depth < 40:
            yield from places(value, depth + 1)


def pick(draft: Draft, tree: Any, wanted: Callable[[Place], bool] = lambda _: True) -> Place | None:
    found = [place for place in places(tree) if wanted(place)]
    return draft.random.choice(found) if found else None


def delete(draft: Draft, tree: Any) -> None:
    place = pick(draft, tree)
    if place is not None:
        del place[0][place[1]]


def rename(draft: Draft, tree: Any) -> None:
    """A key by a misspelt one, or by a key of the language that belongs elsewhere."""
    place = pick(draft, tree, lambda place: isinstance(place[0], dict))
    if place is None:
        return
    parent, key = place
    other = draft.typo(str(key)) if draft.random.random() < 0.6 else draft.random.choice(KEYS)
    _rekey(parent, {key: other})


def _rekey(parent: dict[Any, Any], names: Mapping[Any, Any]) -> None:
    items = [(names.get(key, key), value) for key, value in parent.items()]
    parent.clear()
    parent.update(items)


def retype(draft: Draft, tree: Any) -> None:
    place = pick(draft, tree)
    if place is None:
        return
    parent, key = place
    value = parent[key]
    wrapped: tuple[Any, ...] = ([value], {"x": value}, str(value), [value, value], {str(value)[:50]: value})
    parent[key] = draft.random.choice(wrapped) if draft.random.random() < 0.4 else draft.odd_value()


MOST_HALVED = 10**300
"""Above it half of a whole number is no float."""


def nudge(draft: Draft, tree: Any) -> None:
    """A number by a near or a far one: what a type allows and the arithmetic may not."""
    place = pick(draft, tree, lambda place: _is_number(place[0][place[1]]))
    if place is None:
        return retype(draft, tree)
    parent, key = place
    value = parent[key]
    half = value / 2 if abs(value) < MOST_HALVED else value // 2
    changed = (value + 1, value - 1, -value, value * 2, value * 3, value * 10**6, value * 10**12, half, value // 2)
    parent[key] = draft.random.choice(changed)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def retext(draft: Draft, tree: Any) -> None:
    """A text misspelt, or by a text that stands elsewhere in the flow."""
    place = pick(draft, tree, lambda place: isinstance(place[0][place[1]], str))
    if place is None:
        return
    parent, key = place
    texts = [p[k] for p, k in places(tree) if isinstance(p[k], str)]
    parent[key] = draft.typo(parent[key]) if draft.random.random() < 0.5 else draft.random.choice(texts)


def duplicate(draft: Draft, tree: Any) -> None:
    place = pick(draft, tree)
    if place is None:
        return
    parent, key = place
    value = copy.deepcopy(parent[key])
    if isinstance(parent, list):
        parent.insert(draft.random.randrange(len(parent) + 1), value)
    else:
        parent[f"{key}{draft.random.choice(('_2', '2', '-b', '@val', ' '))}"] = value


def swap_values(draft: Draft, tree: Any) -> None:
    one, other = pick(draft, tree), pick(draft, tree)
    if one is None or other is None:
        return
    first, second = copy.deepcopy(one[0][one[1]]), copy.deepcopy(other[0][other[1]])
    one[0][one[1]], other[0][other[1]] = second, first


def swap_keys(draft: Draft, tree: Any) -> None:
    place = pick(draft, tree, lambda place: isinstance(place[0], dict) and len(place[0]) > 1)
    if place is not None:
        one, other = draft.random.sample(list(place[0]), 2)
        _rekey(place[0], {one: other, other: one})


def move(draft: Draft, tree: Any) -> None:
    """A value to another mapping."""
    place = pick(draft, tree)
    if place is None:
        return
    value = copy.deepcopy(place[0].pop(place[1]))
    target = pick(draft, tree, lambda place: isinstance(place[0][place[1]], dict))
    into = target[0][target[1]] if target is not None else tree
    into[place[1] if isinstance(place[1], str) else draft.random.choice(KEYS)] = value


def transplant(draft: Draft, tree: Any) -> None:
    """A section or entry of another seed."""
    donor = parsed(draft.other().text)
    section = draft.random.choice(list(donor)) if donor else None
    if donor is None or section is None:
        return
    value, own = donor[section], tree.get(section)
    if isinstance(value, dict) and isinstance(own, dict) and value and draft.random.random() < 0.7:
        name = draft.random.choice(list(value))
        own[name] = value[name]
    elif isinstance(value, list) and isinstance(own, list) and draft.random.random() < 0.7:
        own.extend(value)
    else:
        tree[section] = value


def insert(draft: Draft, tree: Any) -> None:
    """A key of the language, with a value of any kind, where it may not stand."""
    place = pick(draft, tree, lambda place: isinstance(place[0][place[1]], dict))
    into = place[0][place[1]] if place is not None else tree
    donor = parsed(draft.other().text) or tree
    values = [parent[key] for parent, key in places(donor)]
    value = copy.deepcopy(draft.random.choice(values)) if values and draft.random.random() < 0.6 else draft.odd_value()
    into[draft.random.choice(KEYS)] = value


def edge(draft: Draft, tree: Any) -> None:
    """One edge: gone, doubled, turned, of another arrow, with other ends, with attributes, or removed by another."""
    lists = [parent[key] for parent, key in places(tree) if key == "edges" and isinstance(parent[key], list)]
    if not lists:
        return insert(draft, tree)
    edges = draft.random.choice(lists)
    if not edges:
        return edges.append(_any_edge(draft, tree))
    at = draft.random.randrange(len(edges))
    whole = edges[at]
    text = whole.get("edge") if isinstance(whole, dict) else whole
    changed = _edge_text(draft, tree, str(text))
    way = draft.random.randrange(6)
    if way == 0:
        del edges[at]
    elif way == 1:
        edges.insert(at, _any_edge(draft, tree))
    elif way == 2:
        edges[at] = {"edge": changed, **_attributes(draft)}
    elif way == 3:
        edges.append({"edge": text, **_attributes(draft)})
    else:
        edges[at] = {**whole, "edge": changed} if isinstance(whole, dict) else changed
    return None


def _ends(draft: Draft, tree: Any) -> list[str]:
    roles = [key for parent, key in places(tree) if isinstance(key, str) and parent is tree.get("roles")]
    data = [f"data.{name}" for name in tree.get("data") or {}] if isinstance(tree.get("data"), dict) else []
    calls = [f"{role}.{draft.random.choice(OPS)}" for role in (*roles, "actor_train", "actor_infer", "nobody")]
    return [*calls, *data, *roles, "data.none", "a.b.c", ""]


def _any_edge(draft: Draft, tree: Any) -> str:
    some = _ends(draft, tree)
    left = ", ".join(draft.random.choices(some, k=draft.random.choice((1, 1, 1, 2, 3))))
    right = ", ".join(draft.random.choices(some, k=draft.random.choice((1, 1, 1, 2, 3))))
    return f"{left} {draft.random.choice(ARROWS)} {right}"


def _edge_text(draft: Draft, tree: Any, text: str) -> str:
    arrow = next((arrow for arrow in ("<->", "->", "=>") if arrow in text), "->")
    left, _, right = text.partition(arrow)
    other = draft.random.choice(_ends(draft, tree))
    ways = (
        f"{right} {arrow} {left}", f"{left} {draft.random.choice(ARROWS)} {right}", f"{left} {arrow} {other}",
        f"{other} {arrow} {right}", f"{left}, {other} {arrow} {right}", f"{left} {arrow} {right}, {other}",
        f"{left} {arrow} {left}", f"{text} {arrow} {other}", draft.typo(text), f"{left}{right}",
    )  # fmt: skip
    return draft.random.choice(ways)


def _attributes(draft: Draft) -> dict[str, Any]:
    names = (
        "every_steps", "every_updates", "start_step", "fields", "transport", "timeout_seconds", "on_timeout", "max_lag",
        "remove",
    )  # fmt: skip
    good: tuple[Any, ...] = (1, 2, 3, 20, True, ["rewards"], ["tokens", "response"], "drop", "error")
    return {
        name: draft.random.choice(good) if draft.random.random() < 0.6 else draft.odd_value()
        for name in draft.random.sample(names, draft.random.choice((1, 1, 2, 3)))
    }


def template(draft: Draft, tree: Any) -> None:
    """A scalar by an expression, and now and then variables that refer to each other."""
    from benchmarks.fuzzing.draft import TEMPLATES

    place = pick(draft, tree, lambda place: not isinstance(place[0][place[1]], dict | list))
    if place is not None:
        place[0][place[1]] = draft.random.choice(TEMPLATES)
    if draft.random.random() < 0.5:
        names = ("a", "b", "x", "y", "n")
        tree["vars"] = {
            name: draft.random.choice((*TEMPLATES, "{{ a }}{{ a }}", "{{ b }}", "{{ x }}{{ y }}", 1, [1], {"x": 2}))
            for name in draft.random.sample(names, draft.random.randrange(1, 5))
        }


TREE_OPERATIONS: Mapping[str, Callable[[Draft, Any], None]] = {
    f"tree.{operation.__name__}": operation
    for operation in (
        delete,
        rename,
        retype,
        nudge,
        retext,
        duplicate,
        swap_values,
        swap_keys,
        move,
        transplant,
        insert,
        edge,
        template,
    )
}


def on_tree(draft: Draft, name: str) -> bool:
    """Apply an operation; False where the text has no tree."""
    tree = parsed(draft.text)
    if tree is None:
        return False
    TREE_OPERATIONS[name](draft, tree)
    flow = draft.random.choice((None, None, False, False, True))
    draft.text = written(tree, flow)
    return True
