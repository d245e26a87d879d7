"""The Python front door says the same as YAML, and its faults are told at the calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import FlowBuilder, OriginKind, loads, to_yaml
from flowrl.spec.functions import UnnameableError, function_name
from tests.spec.flows import GRPO

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/spec/test_builder.py"


def score(response: list[str]) -> list[float]:
    return [0.0 for _ in response]


def grpo() -> FlowBuilder:
    """DESIGN section 2's example."""
    flow = FlowBuilder("grpo")
    policy = flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=64)
    actor = flow.trainer("actor_train", policy, backend="fsdp", loss="ppo")
    batch = infer.generate(flow.data("train", "gsm8k.jsonl"))
    scored = flow.reward("reward", score).score(batch)
    actor.update(flow.estimator("advantage", "grpo").estimate(scored))
    actor >> infer
    flow.step(prompts=8, samples_per_prompt=4)
    return flow


def faults(flow: FlowBuilder) -> list[Diagnostic]:
    with pytest.raises(FlowError) as caught:
        flow.spec()
    return list(caught.value.diagnostics)


def marked(diagnostic: Diagnostic) -> str:
    """The source text under the primary label."""
    span = diagnostic.labels[0].span
    assert span.file == HERE
    line = Path(__file__).read_text(encoding="utf-8").split("\n")[span.line - 1]
    return line[span.column - 1 : span.end_column - 1]


def test_the_example_is_the_yaml() -> None:
    text = GRPO.replace("name: demo", "name: grpo").replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct")
    text = text.replace("train.jsonl", "gsm8k.jsonl").replace("rewards.py:score", "test_builder.py:score")
    assert grpo().spec().document == loads(text).document


def test_a_flow_from_python_round_trips() -> None:
    spec = grpo().spec()
    assert loads(to_yaml(spec)).document == spec.document


def test_paths_start_at_the_calling_file() -> None:
    spec = grpo().spec()
    assert (spec.file, Path(spec.folder).resolve()) == ("<python>", Path(__file__).parent)


def test_places_are_those_of_arguments() -> None:
    spec = grpo().spec()
    origin = spec.origins["roles", "actor_train", "update", "loss"]
    assert origin.kind is OriginKind.PYTHON
    assert origin.value is not None
    assert origin.key is not None
    line = spec.text[HERE].split("\n")[origin.value.line - 1]
    assert line[origin.value.column - 1 : origin.value.end_column - 1] == '"ppo"'
    assert line[origin.key.column - 1 : origin.key.end_column - 1] == "loss"
    edge = spec.span("edges", 4)
    assert edge is not None
    assert spec.text[HERE].split("\n")[edge.line - 1].strip() == "actor >> infer"


def test_labels_follow_the_batch() -> None:
    flow = FlowBuilder("demo")
    policy = flow.model("policy", "x")
    infer = flow.generator("actor_infer", policy, max_response_tokens=8)
    reward = flow.reward("reward", score)
    held_out = infer.generate(flow.data("val", "v.jsonl"), label="val", every_steps=20, temperature=0.0)
    reward.score(held_out)
    reward.score(infer.generate(flow.data("train", "t.jsonl")), label="extra")
    flow.step(prompts=2)
    spec = flow.spec()
    assert [edge.text for edge in spec.document.edges] == [
        "data.val -> actor_infer.generate@val",
        "actor_infer.generate@val -> reward.score@val",
        "data.train -> actor_infer.generate",
        "actor_infer.generate -> reward.score@extra",
    ]
    assert spec.document.edges[0].every_steps == 20
    assert spec.document.roles["actor_infer"].labelled["val"].temperature == 0.0  # type: ignore[union-attr]


def test_several_inputs_make_one_edge() -> None:
    flow = FlowBuilder("demo")
    policy = flow.model("policy", "x")
    infer = flow.generator("actor_infer", policy, max_response_tokens=8)
    batch = infer.generate(flow.data("train", "t.jsonl"))
    scored = flow.reward("reward", score).score(batch)
    logged = flow.scorer("reference", policy, backend="fsdp").log_probs(batch)
    flow.estimator("advantage", "grpo").estimate(scored, logged)
    flow.step(prompts=2)
    assert flow.spec().document.edges[-1].text == "reward.score, reference.log_probs -> advantage.estimate"


def test_stages_hand_over_and_presets_merge() -> None:
    flow = FlowBuilder("demo")
    flow.data("train", "t.jsonl", response="answer")
    first = flow.stage("first", use="sft")
    policy = first.model("policy", "x")
    trained = first.trainer("actor_train", policy, loss="sft")
    second = flow.stage("second", use="sft")
    second.model("policy", trained)
    second.gate("actor_train.loss", at_most=0.1)
    stages = flow.spec().stages
    assert stages[1].models["policy"].source == "stages.first.actor_train"
    assert stages[1].gate is not None
    assert [edge.text for edge in stages[0].edges] == ["data.train -> actor_train.update"]


def test_setters() -> None:
    flow = grpo()
    flow.cluster("16xH100-80G")
    flow.placement("colocated")
    flow.schedule(max_lag=1)
    flow.run(steps=5)
    flow.run(seed=3)
    flow.assume("actor_infer.generate", response_tokens={"mean": 100, "p99": 400})
    flow.allow("FR0604")
    stage = flow.spec().stages[0]
    assert (stage.cluster, stage.placement, stage.schedule.max_lag) == ("16xH100-80G", "colocated", 1)
    assert (stage.run.steps, stage.run.seed) == (5, 3)
    assert flow.spec().document.allow == ("FR0604",)
    assert flow.spec(sets=["step.prompts=2"]).stages[0].step.prompts == 2


def test_faults_are_at_the_arguments() -> None:
    flow = FlowBuilder("demo")
    policy = flow.model("policy", "x", dtyp="float32")
    actor = flow.trainer("actor_train", policy, loss="sft", clip_ratio="wide")
    actor.update(flow.data("train", "t.jsonl", keep="answer"))
    flow.step(prompts=0)
    found = {(diagnostic.code, marked(diagnostic)) for diagnostic in faults(flow)}
    assert found == {("FR0103", "dtyp"), ("FR0102", '"answer"'), ("FR0102", '"wide"'), ("FR0104", "0")}


def test_call_over_several_lines_and_unicode() -> None:
    flow = FlowBuilder("demo")
    flow.model("é", "x")
    flow.model(
        "policy",
        source=3,  # type: ignore[arg-type]
    )
    flow.step(prompts=2)
    found = faults(flow)
    assert [(diagnostic.code, marked(diagnostic)) for diagnostic in found] == [("FR0102", "3"), ("FR0124", '"é"')]


def test_a_second_entry_of_a_name() -> None:
    flow = FlowBuilder("demo")
    flow.model("policy", "x")
    flow.model("policy", "y")
    (found,) = faults(flow)
    assert (found.code, marked(found)) == ("FR0125", '"policy"')


def test_a_batch_of_another_flow() -> None:
    other = FlowBuilder("other")
    flow = FlowBuilder("demo")
    actor = flow.trainer("actor_train", flow.model("policy", "x"), loss="sft")
    actor.update(other.data("train", "t.jsonl"))
    actor.update()
    assert [diagnostic.code for diagnostic in faults(flow)] == ["FR0127", "FR0127"]


class Scorer:
    def method(self, response: list[str]) -> list[float]:
        return []

    def __call__(self, response: list[str]) -> list[float]:
        return []


def outer() -> Any:
    def inner(response: list[str]) -> list[float]:
        return []

    return inner


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda response: response, "a lambda has no name"),
        (outer(), "`inner` is defined inside `outer`"),
        (Scorer().method, "a method is not a function; pass a function, and its arguments as `args=`"),
        (Scorer.method, "`method` is a method of `Scorer`"),
        (Scorer(), "a Scorer is not a function; pass a function, and its arguments as `args=`"),
        (len, "a builtin_function_or_method is not a function; pass a function, and its arguments as `args=`"),
    ],
)
def test_functions_that_have_no_name(function: Any, why: str) -> None:
    with pytest.raises(UnnameableError):
        function_name(function, ".")
    flow = FlowBuilder("demo")
    flow.reward("reward", function)
    (found,) = faults(flow)
    assert (found.code, found.labels[0].text) == ("FR0126", why)


def test_functions_that_are_not_where_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "__name__", "outer")
    monkeypatch.setattr(score, "__qualname__", "outer")
    with pytest.raises(UnnameableError, match="another object"):
        function_name(score, ".")
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("def typed_in(response): return []", namespace)  # noqa: S102
    with pytest.raises(UnnameableError, match="not in a file"):
        function_name(namespace["typed_in"], ".")


def test_names_are_relative_to_the_folder() -> None:
    assert function_name(score, str(ROOT)) == f"{HERE}:score"
    assert function_name(score, str(ROOT / "tests" / "spec")) == "test_builder.py:score"
    assert function_name(score, str(ROOT / "examples")) == f"{ROOT / HERE}:score"
