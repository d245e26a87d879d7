"""Every key of the language changes what is planned or run, or is told to be without effect: none is ignored.

For each key of tests/spec/keys.txt a flow is lowered with two values of it; graph, placement request, run, gate and
cluster must differ, or a diagnostic says that nothing reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.effects import warn_effects
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.lower.run import lower_gate, lower_run
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.text import print_graph, without_spans
from flowrl.spec import loads
from tests.compiler.lower.key_cases import CASES
from tests.compiler.lower.key_flows import BASES, RL

KEYS = Path(__file__).parents[2] / "spec" / "keys.txt"
EXAMPLES = str(Path(__file__).parents[3] / "examples")

TOLD: Mapping[str, str] = {
    "EngineDocument.expert_tensor_parallel": "FR0241",
    "EnvRole.backend": "FR0241",
    "EstimatorRole.backend": "FR0241",
    "EstimatorRole.coef": "FR0217",
    "EstimatorRole.turn_gamma": "FR0217",
    "FilterRole.backend": "FR0241",
    "FilterRole.function": "FR0240",
    "FunctionRole.backend": "FR0241",
    "GenerateOverrides.max_turn_tokens": "FR0240",
    "GeneratorRole.frozen": "FR0333",
    "ModelDocument.head": "FR0202",
}
"""Those that nothing reads in that flow, or that contradict it, and the code that says so."""

ELSEWHERE: Mapping[str, str] = {
    "flowrl": "the version of the language",
    "name": "compared below",
    "use": "the preset, merged before the documents are made (tests/spec/test_presets.py)",
    "include": "files, merged before the documents are made (tests/spec)",
    "vars": "rendered into scalars before the documents are made (tests/spec/test_template.py)",
    "allow": "mutes warnings (tests/api)",
    "stages": "each is lowered (tests/spec/test_stages.py)",
    "gate": "lowered below",
    "kind": "chooses the document",
    **dict.fromkeys(
        ("cluster", "models", "data", "roles", "edges", "step", "schedule", "placement", "run", "assume"),
        "its keys are read one by one",
    ),
}
"""Keys that stand for no value of their own, by name."""


def keys() -> list[str]:
    lines = (line.partition(": ") for line in KEYS.read_text(encoding="utf-8").splitlines())
    return [f"{document}.{key}" for document, _, names in lines for key in names.split()]


def changed(flow: str, path: str, value: Any) -> str:
    root: Any = deepcopy(yaml.safe_load(flow))
    node = root
    rest = path.split("/")
    for key in rest[:-1]:
        node = _into(node, key)
    if isinstance(node, list):
        node[int(rest[-1])] = value
    else:
        node[rest[-1]] = value
    return yaml.safe_dump(root, sort_keys=False)


def _into(node: Any, key: str) -> Any:
    """One step of a path; a short edge becomes a long one."""
    if isinstance(node, list):
        place = int(key)
        if isinstance(node[place], str):
            node[place] = {"edge": node[place]}
        return node[place]
    return node.setdefault(key, {})


@cache
def lowered(flow: str) -> tuple[str, tuple[str, ...]]:
    """All that later rooms get of a flow, as text, and the codes of what it is told."""
    spec = loads(flow, folder=EXAMPLES)
    try:
        graph = lower_stage(spec, 0)
    except FlowError as error:
        return "", tuple(each.code for each in error.diagnostics)
    stage = spec.stages[0]
    values = (lower_placement(spec, 0), lower_run(stage.run), lower_gate(spec, 0), lower_stage_cluster(spec, 0))
    plain = [_plain(msgspec.to_builtins(value)) for value in values]
    return f"{print_graph(without_spans(graph))}\n{plain}", tuple(each.code for each in warn_effects(Stage(spec, 0)))


def _plain(value: Any) -> Any:
    """Without where values came from."""
    if isinstance(value, dict):
        places = ("span", "spans", "role_spans", "origins", "origin")
        return {key: _plain(each) for key, each in value.items() if key not in places}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("base", sorted(BASES))
def test_bases_are_told_nothing(base: str) -> None:
    assert lowered(BASES[base])[1] == ()


ONE_BY_ONE = [key for key in keys() if key.partition(".")[2] not in ELSEWHERE and not key.startswith("GateDocument.")]


@pytest.mark.parametrize("key", ONE_BY_ONE)
def test_key_is_read_or_told(key: str) -> None:
    assert key in CASES, f"say in CASES what `{key}` changes"
    base, path, value = CASES[key]
    before, after = lowered(BASES[base]), lowered(changed(BASES[base], path, value))
    if key in TOLD:
        assert TOLD[key] in after[1]
    else:
        assert after[1] == ()
        assert after[0] != before[0]


def test_cases_are_of_keys_that_there_are() -> None:
    assert set(CASES) <= set(keys())
    assert set(TOLD) <= set(CASES)
    assert set(ELSEWHERE) <= {key.partition(".")[2] for key in keys()}


def test_name_and_gate_are_read() -> None:
    assert lowered(RL.replace("name: rl", "name: other"))[0] != lowered(RL)[0]
    shared = ("flowrl", "cluster", "models", "data")
    flow = yaml.safe_load(RL)
    stage = {key: value for key, value in flow.items() if key not in shared}
    staged = [{**stage, **({} if gate is None else {"gate": gate})} for gate in (None, *GATES)]
    whole = {**{key: flow[key] for key in shared}, "name": "one"}
    texts = [yaml.safe_dump({**whole, "stages": [each]}, sort_keys=False) for each in staged]
    assert {lowered(text)[1] for text in texts} == {()}
    assert len({lowered(text)[0] for text in texts}) == 1 + len(GATES)


METRIC = {"metric": "reward.rewards@val"}
GATES: tuple[dict[str, Any], ...] = (
    {**METRIC, "at_least": 0.5},
    {"metric": "reward.rewards", "at_least": 0.5},
    {**METRIC, "at_least": 0.6},
    {**METRIC, "at_most": 0.5},
    {**METRIC, "at_least": 0.5, "when": "first"},
    {**METRIC, "at_least": 0.5, "otherwise": "continue"},
)
"""Two differ in each key of a gate."""


UNREAD = {
    "actor_infer.generate": ("rl", ("turns", "seconds", "keep", "share", "prompts")),
    "actor_infer.generate@val": ("rl", ("turns", "seconds", "keep", "share")),
    "actor_train.update": ("rl", ("response_tokens", "turns", "seconds", "keep", "share", "prompts")),
    "reward.score": ("rl", ("response_tokens", "turns", "keep", "share", "prompts")),
    "scored.score": ("rl", ("response_tokens", "turns", "seconds", "keep", "share", "prompts")),
    "keepers.select": ("rl", ("response_tokens", "turns", "share", "prompts")),
    "world.step": ("talk", ("response_tokens", "keep", "share", "prompts")),
    "asked.score": ("judged", ("turns", "seconds", "keep", "prompts")),
    "boxed.score": ("judged", ("response_tokens", "turns", "keep", "prompts")),
}
"""Of an op the quantities that no formula of placement/cost or placement/time asks `Assumption` for."""


@pytest.mark.parametrize("op", sorted(UNREAD))
def test_assumptions_that_nothing_reads_are_told(op: str) -> None:
    base, unread = UNREAD[op]
    values = {"response_tokens": 4, "turns": 2, "seconds": 0.5, "keep": 0.5, "share": 0.5, "prompts": 3}
    for key, value in values.items():
        codes = lowered(changed(BASES[base], "assume", {op: {key: value}}))[1]
        assert codes == (("FR0241",) if key in unread else ()), key


def test_an_update_on_a_data_set_has_responses_of_its_own() -> None:
    """One that reads what a generator made has that one's."""
    said = {"actor_train.update": {"response_tokens": 4}}
    supervised = yaml.safe_load(RL) | {"assume": said, "step": {"prompts": 8}}
    supervised["roles"] = {"actor_train": {"model": "policy", "backend": "fsdp", "update": {"loss": "sft"}}}
    supervised |= {"edges": ["data.val -> actor_train.update"], "placement": "auto", "schedule": {}}
    assert "FR0241" in lowered(changed(RL, "assume", said))[1]
    text, codes = lowered(yaml.safe_dump(supervised))
    assert "response_tokens" in text
    assert "FR0241" not in codes


@pytest.mark.parametrize(
    ("base", "op", "said", "told"),
    [
        ("rl", "actor_infer.generate", {"response_tokens": 8}, 0),
        ("rl", "actor_infer.generate", {"response_tokens": 9}, 1),
        ("rl", "actor_infer.generate", {"response_tokens": {"mean": 6, "p99": 5}}, 1),
        ("rl", "actor_infer.generate", {"response_tokens": {"mean": 9, "p99": 5}}, 2),
        ("rl", "reward.score", {"seconds": {"mean": 2.0, "p99": 2.0}}, 0),
        ("rl", "reward.score", {"seconds": {"mean": 2.0, "p99": 1.0}}, 1),
        ("talk", "world.step", {"turns": 4}, 0),
        ("talk", "world.step", {"turns": 4.5}, 1),
    ],
)
def test_assumptions_that_cannot_hold_are_told(base: str, op: str, said: Mapping[str, Any], told: int) -> None:
    assert lowered(changed(BASES[base], "assume", {op: said}))[1] == ("FR0245",) * told


def test_an_engine_carries_no_recomputation_into_the_plan() -> None:
    path = "roles/actor_infer/engine/recompute"
    assert lowered(changed(RL, path, "full")) == lowered(changed(RL, path, "none"))
    assert "FR0241" in lowered(changed(RL, path, "full"))[1]
