"""The two front doors say the same, and neither loses anything: Python → YAML → Flow, YAML → Flow → YAML, digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.text import graph_digest
from flowrl.spec import FlowSpec, load, loads, to_yaml
from flowrl.spec.tree import plain_value
from flowrl.spec.yaml_tree import read_yaml
from tests.spec.python_jobs import FOLDER, JOBS
from tests.spec.python_replay import say
from tests.spec.strategies import as_text, flows

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(FOLDER.glob("*.yaml"))


def normal(document: Any) -> dict[str, Any]:
    """The document without defaults, its edges by their identity: source, arrow, target."""
    made = document.model_dump(exclude_unset=True, by_alias=True, mode="json")
    return _by_pair(made)


def _by_pair(flow: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in flow.items() if value or key not in ("models", "data", "roles", "assume")}
    pairs: dict[tuple[str, str, str], dict[str, Any]] = {}
    for edge in flow.get("edges", ()):
        rest = {key: value for key, value in edge.items() if key not in ("sources", "arrow", "targets")}
        pairs |= {(s, edge["arrow"], t): rest for s in edge["sources"] for t in edge["targets"]}
    return made | {"edges": pairs, "stages": [_by_pair(stage) for stage in flow.get("stages", ())]}


def digests(spec: FlowSpec) -> list[str]:
    """Of each stage, lowered and after the passes."""
    graphs = [lower_stage(spec, index) for index in range(len(spec.stages))]
    return [graph_digest(g) for graph in graphs for g in (graph, run_passes(graph)[0])]


def again(spec: FlowSpec) -> FlowSpec:
    """Written as YAML and read back."""
    return loads(to_yaml(spec), folder=spec.folder)


def test_every_job_is_said_in_python() -> None:
    assert [file.stem for file in FILES] == list(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_in_python_is_its_yaml(name: str) -> None:
    python, yaml = JOBS[name]().spec(), load(FOLDER / f"{name}.yaml")
    assert normal(python.document) == normal(yaml.document)
    assert [normal(stage) for stage in python.stages] == [normal(stage) for stage in yaml.stages]
    assert digests(python) == digests(yaml)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_from_python_comes_back_from_yaml(name: str) -> None:
    spec = JOBS[name]().spec()
    found = again(spec)
    assert found.document == spec.document
    assert found.stages == spec.stages
    assert to_yaml(found) == to_yaml(spec)
    assert digests(found) == digests(spec)


@pytest.mark.parametrize("name", ["quickstart", "ppo", "grpo_ray"])
def test_an_example_said_in_python(name: str) -> None:
    file = ROOT / "examples" / f"{name}.yaml"
    spec = load(file)
    written = loads(to_yaml(spec), folder=spec.folder)
    root = read_yaml(to_yaml(spec), "flow.yaml")
    assert root is not None
    found = say(plain_value(root), spec.folder).spec()
    assert normal(found.document) == normal(written.document)
    assert digests(found) == digests(spec)


@settings(max_examples=40)
@given(flows())
def test_drawn_flows_in_python_are_their_yaml(flow: dict[str, Any]) -> None:
    """Said by calls and read from text a drawn flow is the same, and it comes back from YAML."""
    python, yaml = say(flow).spec(), loads(as_text(flow))
    assert normal(python.document) == normal(yaml.document)
    assert [normal(stage) for stage in python.stages] == [normal(stage) for stage in yaml.stages]
    found = again(python)
    assert found.document == python.document
    assert found.stages == python.stages


@settings(max_examples=40)
@given(flows())
def test_drawn_flows_are_stable_when_written_twice(flow: dict[str, Any]) -> None:
    spec = loads(as_text(flow))
    first = to_yaml(spec)
    found = loads(first)
    assert found.document == spec.document
    assert found.stages == spec.stages
    assert to_yaml(found) == first
