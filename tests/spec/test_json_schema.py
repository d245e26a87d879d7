"""The JSON Schema accepts what the loader accepts, and refuses its faults of shape: keys, types, what is missing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.diag.diagnostic import FlowError
from flowrl.spec import json_schema, load, loads, to_yaml
from flowrl.spec.document import Document
from flowrl.spec.json_whole import WHOLE
from flowrl.spec.presets import preset_names, preset_text
from flowrl.spec.roles import DEFAULT_KINDS, KINDS
from flowrl.spec.types import fields
from tests.house.test_flows import snippets
from tests.spec.flows import GRPO, STAGES, changed, codes
from tests.spec.python_jobs import FOLDER
from tests.spec.strategies import as_text, flows
from tests.spec.test_digests import plain, sources, use_of
from tests.spec.test_schema import DOCUMENTS

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted([*(ROOT / "examples").glob("*.yaml"), *FOLDER.glob("*.yaml")])
CASES = sorted(ROOT.glob("tests/errors/*/flow.yaml"))
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def accepts(flow: Any) -> bool:
    return VALIDATOR.is_valid(flow)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("cls", DOCUMENTS, ids=lambda cls: cls.__name__)
def test_every_key_of_every_document_is_described(cls: type[Document]) -> None:
    definition = SCHEMA if cls.__name__ == "FlowDocument" else SCHEMA["$defs"][cls.__name__]
    form = next((form for form in definition.get("anyOf", []) if "properties" in form), definition)
    keys = [key for key in fields(cls) if key != "labelled"]
    assert set(form["properties"]) == set(keys)
    assert all(form["properties"][key].get("description") for key in keys)
    assert form["additionalProperties"] is False
    for key, field in cls.model_fields.items():
        if key in form["properties"] and isinstance(field.default, int | float | str) and key != "remove":
            assert form["properties"][key]["default"] == field.default


def test_kinds_are_told_apart_and_may_be_left_out_for_six_names() -> None:
    roles = SCHEMA["properties"]["roles"]
    assert set(roles["properties"]) == set(DEFAULT_KINDS)
    chosen = [
        branch["if"]["properties"]["kind"]["const"] for branch in SCHEMA["$defs"]["RoleDocument"]["then"]["allOf"]
    ]
    assert chosen == list(KINDS)


def test_every_definition_is_used() -> None:
    text = str(SCHEMA)
    assert all(f"#/$defs/{name}'" in text for name in SCHEMA["$defs"])
    assert [name for name in SCHEMA["$defs"] if name.startswith(WHOLE)]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_it_accepts_shipped_flows_as_written_and_as_resolved(file: Path) -> None:
    assert accepts(plain(file.read_text(encoding="utf-8")))
    assert accepts(plain(to_yaml(load(file))))


@pytest.mark.parametrize("preset", preset_names())
def test_it_accepts_presets(preset: str) -> None:
    """The file, with what only a flow over it gives; a flow that uses it; and what that one resolves to."""
    used = {"flowrl": 1, "use": preset, **use_of(preset)}
    assert accepts({**plain(preset_text(preset)), "use": preset})
    assert accepts(used)
    assert accepts(plain(to_yaml(loads(as_text(used)))))


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in snippets("yaml") if "\nflowrl:" in f"\n{text}"]
)
def test_it_accepts_flows_of_the_pages(text: str) -> None:
    assert accepts(plain(text))


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.parent.name)
def test_goldens_that_load_are_accepted(file: Path) -> None:
    """Flows that are wrong in what they mean, not in their shape, and those with warnings only."""
    try:
        load(file)
    except FlowError:
        return
    assert accepts(plain(file.read_text(encoding="utf-8")))


@settings(max_examples=40)
@given(flows())
def test_it_accepts_drawn_flows(flow: dict[str, Any]) -> None:
    assert accepts(flow)


FAULTS = [
    ("prompts: 8", "promts: 8"),
    ("prompts: 8", "prompts: eight"),
    ("prompts: 8", "prompts: 0"),
    ("prompts: 8", "prompts: true"),
    ("prompts: 8, ", ""),
    ("step:", "stp:"),
    ("flowrl: 1", "flowrl: 2"),
    ("flowrl: 1", "flowrl: true"),
    ("name: demo", "name: a b"),
    ("step:", "placement: colocate\nstep:"),
    ("step:", "placement: {pools: {a: {roles: []}}}\nstep:"),
    ("step:", "cluster: {gpu: cpu}\nstep:"),
    ("step:", "cluster: {gpu: cpu, gpus_per_node: 2, groups: {a: {gpu: cpu, gpus_per_node: 2}}}\nstep:"),
    ("step:", "run: {loggers: [tensorbord]}\nstep:"),
    ("step:", "gate: {metric: x, at_least: 1}\nstep:"),
    ("step:", "assume: {a.b: {seconds: {p99: 1}}}\nstep:"),
    ("step:", "schedule: 3\nstep:"),
    ("loss: ppo", "los: ppo"),
    ("loss: ppo", "clip_ratio: 0.2"),
    ("loss: ppo", "loss: ppo, clip_ratio: {low: 0.1}"),
    ("loss: ppo", "loss: ppo, correction: [{name: tus}]"),
    ("loss: ppo", "loss: ppo, correction: {cap: 2}"),
    ("loss: ppo", "loss: ppo, kl: {form: k1}"),
    ("reward: {", "rewards: {"),
    ("reward: {", "reward: {kind: rewrd, "),
    ("reward: {function", "reward: {combine: {a: 1}, function"),
    ('{function: "rewards.py:score"}', "{args: {}}"),
    ('{function: "rewards.py:score"}', "{judge: {template: a}, model: policy}"),
    ("actor_infer: {model: policy, ", "actor_infer: {"),
    ("{estimator: grpo}", "{gamma: 1}"),
    ("{source: train.jsonl}", "{prompt: x}"),
    ("{source: train.jsonl}", "{source: a, seeds: 3}"),
    ("{source: Qwen/Qwen2.5-7B}", "{source: {layers: 2}}"),
    ("{source: Qwen/Qwen2.5-7B}", "{source: x, lora: {rank: 2}}"),
    ("policy: {source", "1policy: {source"),
    ("{max_response_tokens: 64}", "{max_response_tokens: 64}, generate@val: {temperatur: 0}"),
    ("{max_response_tokens: 64}", '{max_response_tokens: 64}, "generate@": {}'),
    ("{max_response_tokens: 64}", "{max_response_tokens: 64, samples_per_prompt: 2}"),
    ("- actor_train => actor_infer", "- {edge: a => b, every_step: 2}"),
    ("- actor_train => actor_infer", "- {edge: a => b, fields: tokens}"),
    ("- actor_train => actor_infer", "- {edge: a.x -> b.y, max_lag: 1}"),
    ("- actor_train => actor_infer", "- {edge: a.x <-> b.y, every_steps: 1}"),
    ("- actor_train => actor_infer", "- {edge: a => b, every_steps: 1, every_updates: 2}"),
    ("- actor_train => actor_infer", "- {every_steps: 1}"),
    ("- actor_train => actor_infer", "- actor_train -> actor_infer"),
    ("- actor_train => actor_infer", "- actor_train = actor_infer"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_it_refuses_what_the_loader_refuses(old: str, new: str) -> None:
    text = changed(GRPO, (old, new))
    assert codes(text)
    assert not accepts(plain(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  - name: second\n", "  - nam: second\n"),
        ("stages:\n", "step: {prompts: 2}\nstages:\n"),
        ("{source: Qwen/Qwen2.5-7B, dtype: float32}", "{dtype: float32}"),
        ("    use: sft\n    roles:", "    roles:"),
    ],
)
def test_it_refuses_stages_that_the_loader_refuses(old: str, new: str) -> None:
    assert accepts(plain(STAGES))
    text = changed(STAGES, (old, new))
    assert codes(text)
    assert not accepts(plain(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("prompts: 8", 'prompts: "{{ n }}"'),
        ("{source: train.jsonl}", '{source: train.jsonl, keep: "{{ columns }}"}'),
        ("{source: Qwen/Qwen2.5-7B}", '"{{ model }}"'),
        ("- actor_train => actor_infer", '- "{{ a }} => b"'),
        ("loss: ppo", 'loss: ppo, aggregate: "{{ how }}"'),
    ],
)
def test_it_allows_templates_for_values(old: str, new: str) -> None:
    assert accepts(plain(changed(GRPO, (old, new))))


SHAPE = {"FR0101", "FR0102", "FR0103", "FR0105", "FR0106", "FR0107", "FR0108", "FR0110", "FR0112", "FR0123", "FR0124"}
VALUES = [None, True, 7, -3, 0.5, "words", "2", [], ["a"], {}, {"a": 1}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def mutants(draw: st.DrawFn) -> dict[str, Any]:
    """A job or a flow over a preset with one value replaced, one key deleted or one key added."""
    flow = copy.deepcopy(sources()[draw(st.sampled_from(sorted(sources())))])
    path = draw(st.sampled_from(sorted(places(flow), key=str)))
    parent: Any = flow
    for key in path[:-1]:
        parent = parent[key]
    how = draw(st.sampled_from(["replace", "replace", "delete", "add"]))
    if how == "replace" or not isinstance(parent, dict):
        parent[path[-1]] = draw(st.sampled_from(VALUES))
    elif how == "delete":
        del parent[path[-1]]
    else:
        parent[draw(st.sampled_from(["zzz", "promts", "kind", "model", "args", "labelled", "declared"]))] = 1
    return flow


def faults(flow: dict[str, Any]) -> set[str]:
    try:
        loads(as_text(flow), folder=str(FOLDER))
    except FlowError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


def starts_elsewhere(flow: dict[str, Any]) -> bool:
    stages = [stage for stage in flow.get("stages") or [] if isinstance(stage, dict)]
    return any("use" in some for some in (flow, *stages))


@settings(max_examples=100)
@given(mutants())
def test_it_agrees_with_the_loader_on_mutants(flow: dict[str, Any]) -> None:
    """One that loads is accepted; one with nothing but faults of shape, where nothing stands below, is refused."""
    found = faults(flow)
    if not found:
        assert accepts(flow)
    elif found <= SHAPE and not starts_elsewhere(flow):
        assert not accepts(flow)
