"""A preset → the first files of a flow that uses it: the flow with remarks, and the functions that it names.

What the flow must give follows from the preset itself: models that its roles name, a reward without a flavour, the
columns that its loss reads. The files pass `flowrl check` as they stand; the data is the user's own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowrl.spec.presets import preset_head, preset_tree
from flowrl.spec.tree import MappingNode, Node, ScalarNode, SequenceNode, descend, plain_value

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
TEACHER = "Qwen/Qwen2.5-7B-Instruct"
CLUSTER = "8xH100-80G"
REWARDS = "rewards.py"
_SCALAR_LOSSES = ("value", "bradley_terry")
_WIDTH = 116


@dataclass(frozen=True, slots=True)
class Needs:
    """What a flow must give to a preset."""

    models: Mapping[str, str]
    """Name → head, in the order in which roles name them."""
    function: str | None
    """Name of the reward's function: score or compare; None where the preset has no open reward."""
    columns: Mapping[str, str]
    """Keys of `data.train` that name columns → the column in the starter."""
    signed: bool
    """Whether wrong answers score -1."""


def needs_of(preset: str) -> Needs:
    """What `preset` leaves open."""
    tree = preset_tree(preset)
    roles = descend(tree, ("roles",))
    assert isinstance(roles, MappingNode)
    losses = {_text(entry.node, "update", "loss") for entry in roles.entries.values()}
    has_reward = "reward" in roles.entries and set(plain_value(roles.entries["reward"].node)) == {"kind"}
    compares = any("reward.compare" in edge for edge in _edges(tree))
    function = ("compare" if compares else "score") if has_reward else None
    return Needs(_models(roles), function, _columns(losses, function), "topr" in losses)


def starter(preset: str, file: str) -> dict[str, str]:
    """File name → text: the flow under the name `file`, and what it needs beside it."""
    needs = needs_of(preset)
    files = {file: _flow(preset, file, needs)}
    if needs.function is not None:
        files[REWARDS] = _rewards(needs)
    return files


def _models(roles: MappingNode) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in roles.entries.values():
        name = _text(entry.node, "model")
        scalar = _text(entry.node, "update", "loss") in _SCALAR_LOSSES or _is_reward(entry.key, entry.node)
        if name:
            found.setdefault(name, "scalar" if scalar else "lm")
    return found


def _is_reward(name: str, role: Node) -> bool:
    return (_text(role, "kind") or name) == "reward"


def _columns(losses: set[str], function: str | None) -> dict[str, str]:
    if "bradley_terry" in losses:
        return {"chosen": "chosen", "rejected": "rejected"}
    if losses == {"sft"}:
        return {"response": "response"}
    return {"keep": "answer"} if function == "score" else {}


def _edges(tree: MappingNode) -> Iterator[str]:
    edges = tree.get("edges")
    for item in edges.items if isinstance(edges, SequenceNode) else ():
        yield str(plain_value(item))


def _text(node: Node, *path: str) -> str:
    found = descend(node, path)
    return str(found.value) if isinstance(found, ScalarNode) else ""


def _flow(preset: str, file: str, needs: Needs) -> str:
    sections = (
        _head(preset, file),
        f"flowrl: 1\nname: {preset.replace('_', '-')}\nuse: {preset}\n",
        f"cluster: {CLUSTER}{' ' * 22}# or `local`: this machine\n",
        _models_section(needs),
        _data_section(needs),
        _roles_section(preset, needs),
        _step_section(preset),
        "run: {steps: 100, checkpoint_every_steps: 50, seed: 0}\n",
    )
    return "\n".join(section for section in sections if section)


def _head(preset: str, file: str) -> str:
    head = preset_head(preset)
    lines = textwrap.wrap(head.what, _WIDTH) + textwrap.wrap(head.paper, _WIDTH)
    commands = (
        ("check", "every fault of the flow, without a GPU"),
        ("plan", "what runs where and when, and whether it fits"),
        ("run", "run it"),
    )
    lines += ["", *(f"  flowrl {verb} {file}".ljust(42) + words for verb, words in commands)]
    lines += [f"  flowrl expand --origins {file}".ljust(42) + "every value, also those of the preset"]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _models_section(needs: Needs) -> str:
    rows = [f"  {name}: {_model(name, head)}" for name, head in needs.models.items()]
    return "models:                                  # each a hub id or a folder\n" + "\n".join(rows) + "\n"


def _model(name: str, head: str) -> str:
    source = TEACHER if name == "teacher" else MODEL
    return f"{{source: {source}}}" if head == "lm" else f"{{source: {source}, head: scalar}}"


def _data_section(needs: Needs) -> str:
    rows = [("source: data/train.jsonl", "one JSON object a line, with the columns below")]
    rows += [("prompt: prompt", "column: a text, or a list of {role, content}")]
    words = {
        "response": "column: the wanted response",
        "chosen": "column: the better response",
        "rejected": "column: the worse response",
        "keep": f"columns that functions in {REWARDS} read",
    }
    for key, column in needs.columns.items():
        rows.append((f"{key}: [{column}]" if key == "keep" else f"{key}: {column}", words[key]))
    rows += [("max_prompt_tokens: 1024", "longer prompts are an error; `on_long: drop` drops them")]
    return "data:\n  train:\n" + "".join(f"    {text:<36} # {remark}\n" for text, remark in rows)


def _roles_section(preset: str, needs: Needs) -> str:
    rows: list[str] = []
    if needs.function is not None:
        reads = "prompt, response" if needs.function == "compare" else "response, answer"
        rows.append(f'  reward: {{function: "{REWARDS}:{needs.function}"}}  # reads {reads}: its parameter names\n')
    tree = preset_tree(preset)
    rows.append("  # Values of the preset that are often changed:\n")
    for name, *path in (("actor_train", "optimizer", "lr"), ("actor_infer", "generate", "max_response_tokens")):
        node = descend(tree, ("roles", name, *path))
        if isinstance(node, ScalarNode) and isinstance(node.value, int | float):
            rows.append(f"  # {name}: {{{path[0]}: {{{path[1]}: {node.text}}}}}\n")
    if len(rows) < 2 or (needs.function is None and len(rows) == 1):
        return ""
    lead = "roles:\n" if needs.function is not None else "# roles:\n"
    return lead + "".join(rows)


def _step_section(preset: str) -> str:
    step = descend(preset_tree(preset), ("step",))
    assert isinstance(step, MappingNode)
    values = ", ".join(f"{key}: {plain_value(entry.node)}" for key, entry in step.entries.items() if key != "refill")
    return f"# step: {{{values}}}      # the batch; `updates` must divide `prompts`\n"


def _rewards(needs: Needs) -> str:
    return _COMPARE if needs.function == "compare" else _SCORE.format(wrong="-1.0" if needs.signed else "0.0")


_SCORE = '''"""The reward of the flow. Parameter names are the columns it reads; each holds one entry per sample."""


def score(response: list[str], answer: list[str]) -> list[float]:
    """1 for a response that ends with the answer, else {wrong}: replace it with your own."""
    pairs = zip(response, answer, strict=True)
    return [1.0 if text.strip().endswith(str(right).strip()) else {wrong} for text, right in pairs]
'''

_COMPARE = '''"""The comparison of the flow. Parameter names are the columns it reads, one entry per sample each."""


def compare(prompt: list, response: list[str]) -> list[float]:
    """For each response the share of the others to its prompt that it beats. Here the shorter one wins: replace it with
    your own."""
    shares = []
    for question, text in zip(prompt, response, strict=True):
        others = [other for q, other in zip(prompt, response, strict=True) if q == question]
        beaten = sum(len(text) < len(other) for other in others)
        shares.append(beaten / max(1, len(others) - 1))
    return shares
'''
