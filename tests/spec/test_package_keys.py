"""Keys that an installed package declares: typed, with defaults, in the schema and the reference, at the backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.graph.text import graph_digest, parse_graph, print_graph
from flowrl.spec import FlowBuilder, json_schema, loads, to_yaml
from flowrl.spec.package_keys import DeclarationError, keys_of
from tests.spec.fake_package import install
from tools import pages

FLOW = """\
flowrl: 1
name: demo
models: {policy: {source: Qwen/Qwen2.5-7B}}
data:
  train: {source: train.jsonl, max_prompt_tokens: 8}
  val: {source: val.jsonl, max_prompt_tokens: 8}
roles:
  actor_train: {model: policy, backend: BACKEND, update: {loss: ppoUPDATE}}
  actor_infer:
    {model: policy, backend: acme, generate: {max_response_tokens: 8GENERATE}, engine: {packing: trueENGINE},
     generate@val: {temperature: 0.0LABEL}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 8, buffer_tokens: 2, penalty: 1.0}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - data.val -> actor_infer.generate@val
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_flowrl_keys", raising=False)


def flow(**parts: str) -> str:
    text = FLOW.replace("BACKEND", parts.pop("backend", "acme"))
    for name in ("UPDATE", "GENERATE", "ENGINE", "LABEL"):
        text = text.replace(name, parts.get(name.lower(), ""))
    return text


def graph(text: str) -> Graph:
    return lower_stage(loads(text), 0)


def extras(text: str) -> dict[str, Any]:
    made = graph(text)
    ops = {op.id: getattr(op.params, "extra", {}) for op in made.ops}
    engines = {f"{role.name} engine": role.engine.extra for role in made.roles if role.kind == "generator"}
    return {name: extra for name, extra in (ops | engines).items() if name.startswith("actor") and extra}


@pytest.mark.usefixtures("acme")
def test_values_reach_the_backend_and_defaults_fill_in() -> None:
    assert extras(flow()) == {
        "actor_infer.generate": {"beams": 1},
        "actor_infer.generate@val": {"beams": 1},
        "actor_train.update": {"zeal": 0.5},
        "actor_infer engine": {"policy": "fcfs"},
    }
    given = flow(
        generate=", beams: 4, draft: small",
        label=", beams: 2",
        update=", zeal: 2",
        engine=", policy: priority, ports: [80, 81], extra: {speed: 9}",
    )
    assert extras(given) == {
        "actor_infer.generate": {"beams": 4, "draft": "small"},
        "actor_infer.generate@val": {"beams": 2, "draft": "small"},
        "actor_train.update": {"zeal": 2},
        "actor_infer engine": {"speed": 9, "policy": "priority", "ports": [80, 81]},
    }
    assert parse_graph(print_graph(graph(given))).op("actor_train.update").params.extra == {"zeal": 2}  # type: ignore[union-attr]


@pytest.mark.usefixtures("acme")
def test_what_changes_the_maths_is_in_the_digest() -> None:
    plain = graph_digest(graph(flow()))
    assert graph_digest(graph(flow(generate=", beams: 1", update=", zeal: 0.5"))) == plain, "the defaults, written"
    assert graph_digest(graph(flow(generate=", beams: 2"))) != plain
    assert graph_digest(graph(flow(label=", beams: 2"))) != plain
    assert graph_digest(graph(flow(update=", zeal: 0.25"))) != plain


@pytest.mark.usefixtures("acme")
def test_a_flow_with_such_keys_round_trips_and_is_said_in_python() -> None:
    text = flow(generate=", beams: 4", label=", beams: 2", update=", zeal: 2", engine=", policy: priority")
    spec = loads(text)
    found = loads(to_yaml(spec))
    assert found.document == spec.document
    assert "<declared>" not in to_yaml(spec)
    span = spec.span("roles", "actor_train", "update", "zeal")
    assert span is not None
    assert text.split("\n")[span.line - 1][span.column - 1 :].startswith("2}")
    python = FlowBuilder("demo", folder=".")
    policy = python.model("policy", "Qwen/Qwen2.5-7B")
    python.trainer("actor_train", policy, backend="acme", loss="ppo", zeal=2)
    engine = {"packing": True, "policy": "priority"}
    infer = python.generator("actor_infer", policy, backend="acme", max_response_tokens=8, beams=4, engine=engine)
    infer.generate(python.data("val", "val.jsonl"), label="val", temperature=0.0, beams=2, every_steps=5)
    python.step(prompts=8)
    roles = python.spec().document.roles
    assert {name: roles[name] for name in ("actor_train", "actor_infer")} == {
        name: spec.document.roles[name] for name in ("actor_train", "actor_infer")
    }


def codes(text: str) -> list[str]:
    with pytest.raises(FlowError) as caught:
        loads(text)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"generate": ", beams: two"}, "FR0102"),
        ({"generate": ", beams: 1.5"}, "FR0102"),
        ({"generate": ", beams: true"}, "FR0102"),
        ({"generate": ", beams: null"}, "FR0102"),
        ({"label": ", beams: [1]"}, "FR0102"),
        ({"update": ", beams: 1"}, "FR0103"),
        ({"update": ", zeal: 1", "backend": "fsdp"}, "FR0103"),
        ({"engine": ", policy: lifo"}, "FR0105"),
        ({"engine": ", ports: 80"}, "FR0102"),
        ({"engine": ", ports: [80, b]"}, "FR0102"),
        ({"engine": ", declared: {}"}, "FR0103"),
    ],
)
def test_loader_and_schema_refuse_the_same(parts: dict[str, str], code: str) -> None:
    text = flow(**parts)
    assert codes(text) == [code]
    assert refused(text)


@pytest.mark.usefixtures("acme")
def test_numbers_that_no_plan_holds() -> None:
    """JSON has no word for them, so the schema says nothing."""
    assert codes(flow(update=", zeal: .nan")) == ["FR0102"]


def refused(text: str) -> bool:
    from flowrl.spec.tree import plain_value
    from flowrl.spec.yaml_tree import read_yaml

    root = read_yaml(text, "flow.yaml")
    assert root is not None
    return not jsonschema.Draft202012Validator(json_schema()).is_valid(plain_value(root))


@pytest.mark.usefixtures("acme")
def test_the_schema_has_them() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert not refused(flow(generate=", beams: 4, draft: null", update=", zeal: 2", engine=", ports: [80]"))
    text = str(json_schema())
    assert "Beams kept at each token. Unit: beams. Default 1. From the package acme-flowrl, for backend acme." in text


@pytest.mark.usefixtures("acme")
def test_the_reference_lists_them_with_their_package() -> None:
    row = "| `zeal` | number | Factor of the step. Default 0.5. From the package acme-flowrl, for backend acme. |"
    assert row in pages.flow().split("## Update\n")[1].split("\n## ")[0]
    assert "acme" not in (pages.ROOT / "docs" / "reference" / "flow.md").read_text(encoding="utf-8")


def test_without_the_package_they_are_unknown() -> None:
    assert codes(flow(update=", zeal: 2")) == ["FR0103"]
    assert "acme" not in str(json_schema())


def test_keys_of_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'KEYS = {"engine": {"threads": {"type": "int", "doc": "Threads."}}}'
    monkeypatch.syspath_prepend(install(tmp_path, text, "generator.acme", "one-kind"))
    assert list(keys_of("generator", "acme")["engine"]) == ["threads"]
    assert keys_of("trainer", "acme") == {}
    assert keys_of("generator", "other") == keys_of("generator", None) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("KEYS = 3", ": the entry point is no mapping of names"),
        ("raise OSError('gone')", ": `bad_keys_keys:KEYS`: OSError: gone"),
        ("K = {}", ": `bad_keys_keys:KEYS`: AttributeError: module 'bad_keys_keys' has no attribute 'KEYS'"),
        ("KEYS = {'score': {}}", " declares keys of `score`"),
        ("KEYS = {'update': {'a': {'type': 'int'}}}", ": `update.a` has no `doc`"),
        ("KEYS = {'update': {'a': {'type': 'int', 'doc': 'A.', 'min': 1}}}", ": `update.a` has `min`"),
        ("KEYS = {'update': {'loss': {'type': 'int', 'doc': ''}}}", ": `update.loss` is a key of the language already"),
        (
            "KEYS = {'update': {'a': {'type': 'int', 'default': 'x', 'doc': 'A.'}}}",
            ": `update.a` has the default 'x', which is not of its type",
        ),
    ],
)  # fmt: skip
def test_declarations_that_cannot_be_used(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, text, package="bad-keys"))
    monkeypatch.delitem(sys.modules, "bad_keys_keys", raising=False)
    with pytest.raises(DeclarationError) as caught:
        keys_of("trainer", "acme")
    assert str(caught.value) == f"bad-keys{problem}"
    assert codes(flow()) == ["FR0140", "FR0140"], "both roles of the backend"


def test_a_key_of_two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "KEYS = {'update': {'a': {'type': 'int', 'doc': 'A.'}}}"
    for name in ("one-x", "two-x"):
        monkeypatch.syspath_prepend(install(tmp_path / name, text, package=name))
    with pytest.raises(DeclarationError, match="`a` of `update` is declared by one-x and two-x"):
        keys_of("trainer", "acme")


def test_a_module_that_imports_what_runs_is_refused_and_others_are_read_without_it(tmp_path: Path) -> None:
    """In a process of its own: here another test may have imported it."""
    good = install(tmp_path / "good")
    bad = install(tmp_path / "bad", "import numpy\nKEYS = {}", "other", "bad-heavy")
    script = f"""
import sys
sys.path[:0] = [{good!r}, {bad!r}]
from flowrl.spec.package_keys import DeclarationError, keys_of
assert keys_of("trainer", "acme")["update"]["zeal"].default == 0.5
assert "torch" not in sys.modules and "numpy" not in sys.modules
try:
    keys_of("trainer", "other")
except DeclarationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "bad-heavy: `bad_heavy_keys:KEYS` imports numpy\n"
