"""The documents: what they accept of LANGUAGE.md, their keys, the JSON Schema."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

from flowrl.spec import load
from flowrl.spec.document import Document, Extensible
from flowrl.spec.json_schema import _field_docs, _subclasses
from flowrl.spec.roles import DEFAULT_KINDS, KINDS, RoleBase, RoleDocument
from flowrl.spec.schema import EdgeDocument, FlowDocument, StageDocument
from flowrl.spec.types import annotation_at, expected, fields
from tests.conftest import Golden
from tests.spec.flows import GRPO, changed, codes, diagnostics_of
from tests.spec.strategies import as_text, flow_texts

ROOT = Path(__file__).resolve().parents[2]
FLOWS = sorted((ROOT / "examples" / "flows").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
DOCUMENTS = sorted(
    {cls for cls in _subclasses(Document) if cls not in (RoleBase, Extensible)}, key=lambda cls: cls.__name__
)


@pytest.mark.parametrize("file", FLOWS, ids=lambda file: file.name)
def test_the_eleven_jobs_parse(file: Path) -> None:
    assert load(file).stages


def test_there_are_eleven_jobs() -> None:
    assert len(FLOWS) == 11


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_load(file: Path) -> None:
    assert load(file).stages


@pytest.mark.parametrize("cls", DOCUMENTS, ids=lambda cls: cls.__name__)
def test_every_field_has_a_docstring(cls: type[Document]) -> None:
    assert cls.__doc__
    assert set(_field_docs(cls)) >= set(cls.model_fields)


@pytest.mark.parametrize("cls", DOCUMENTS, ids=lambda cls: cls.__name__)
def test_a_key_that_may_be_left_out_says_what_holds_then(cls: type[Document]) -> None:
    docs = _field_docs(cls)
    optional = [name for name, field in cls.model_fields.items() if not field.is_required()]
    assert [name for name in optional if not re.search(r"\b[Dd]efault\b", docs[name])] == []


@pytest.mark.parametrize("cls", DOCUMENTS, ids=lambda cls: cls.__name__)
def test_a_field_with_a_default_says_so(cls: type[Document]) -> None:
    """Simple defaults stand in the docstring, so that documentation and behaviour agree."""
    docs = _field_docs(cls)
    for name, field in cls.model_fields.items():
        default = field.default
        if field.is_required() or field.default_factory or not isinstance(default, int | float | str):
            continue
        if name in ("kind", "remove") or isinstance(default, bool):
            continue
        said = docs[name].rpartition("Default")[2]
        numbers = [float(word) for word in re.findall(r"-?\d[\d.]*(?:e-?\d+)?", said.rstrip("."))]
        assert default in said if isinstance(default, str) else default in numbers, name


def test_keys_are_as_in_the_golden(golden: Golden) -> None:
    """A new key of the language needs a decision; this list shows it in review."""
    lines = [f"{cls.__name__}: {' '.join(fields(cls))}" for cls in DOCUMENTS]
    golden(Path(__file__).with_name("keys.txt"), "\n".join(lines) + "\n")


def test_kinds_are_those_of_the_union() -> None:
    kinds = [get_args(cls.model_fields["kind"].annotation)[0] for cls in get_args(get_args(RoleDocument)[0])]
    assert tuple(kinds) == KINDS
    assert set(DEFAULT_KINDS.values()) <= set(KINDS)


def test_flow_and_stage_have_the_same_sections() -> None:
    flow, stage = set(FlowDocument.model_fields), set(StageDocument.model_fields)
    assert flow - stage == {"flowrl", "allow", "stages"}
    assert stage - flow == {"gate"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("prompts: 8", "prompts: true", "FR0102"),
        ("prompts: 8", "prompts: 8.5", "FR0102"),
        ("prompts: 8", "prompts: null", "FR0102"),
        ("prompts: 8", "prompts: [8]", "FR0102"),
        ("prompts: 8", "prompts: -1", "FR0104"),
        ("prompts: 8, samples_per_prompt: 4", "prompts: .nan", "FR0102"),
        ("name: demo", "name: 3", "FR0102"),
        ("loss: ppo", "loss: ppo, entropy_coef: .nan", "FR0104"),
        ("loss: ppo", "loss: ppo, clip_ratio: {low: 0.1}", "FR0101"),
        ("loss: ppo", "loss: ppo, clip_ratio: {low: 0.1, high: 0.2, top: 1}", "FR0103"),
        ("loss: ppo", "loss: ppo, correction: {name: tis, cap: 0}", "FR0104"),
        ("loss: ppo", "loss: ppo, correction: [{name: tus}]", "FR0105"),
        ("loss: ppo", "loss: ppo, correction: tis", "FR0102"),
        ("loss: ppo", "loss: ppo, kl: 0.1", "FR0102"),
        ("{max_response_tokens: 64}", "{max_response_tokens: 64, samples_per_prompt: 2}", "FR0103"),
        ("{max_response_tokens: 64}", "{max_response_tokens: 64}, labelled: {}", "FR0103"),
        ("{max_response_tokens: 64}", "{max_response_tokens: 64}, generate@val: {kind: x}", "FR0103"),
        ("{max_response_tokens: 64}", '{max_response_tokens: 64}, "generate@": {}', "FR0124"),
        ("{max_response_tokens: 64}", "{max_response_tokens: 64, top_p: 0}", "FR0104"),
        ("actor_infer: {model: policy, ", "actor_infer: {", "FR0101"),
        ("{estimator: grpo}", "{estimator: grpo, sources: []}", "FR0103"),
        ("{source: train.jsonl}", "{source: train.jsonl, on_long: cut}", "FR0105"),
        ("step:", "cluster: [a]\nstep:", "FR0102"),
        ("step:", "cluster: {gpu: cpu, gpus_per_node: 2, network: 1}\nstep:", "FR0103"),
        ("step:", "placement: {pools: {a: {roles: []}}}\nstep:", "FR0101"),
        ("step:", "placement: {apart: [a]}\nstep:", "FR0102"),
        ("step:", "run: {loggers: [tensorbord]}\nstep:", "FR0105"),
        ("step:", "allow: FR0604\nstep:", "FR0102"),
        ("step:", "roles: 3\nstep:", "FR0011"),
        ("step:", "assume: {a.b: {seconds: {p99: 1}}}\nstep:", "FR0101"),
        ("step:", "gate: {metric: x}\nstep:", "FR0103"),
        ("step:", "3: 4\nstep:", "FR0103"),
    ],
)  # fmt: skip
def test_refused(old: str, new: str, code: str) -> None:
    assert set(codes(changed(GRPO, (old, new)))) == {code}


@given(flow_texts(with_stages=False))
@settings(max_examples=15)
def test_a_foreign_key_anywhere_is_refused_at_its_place(text: str) -> None:
    """Put an unknown key into each document of a drawn flow."""
    flow = json.loads(text)
    flow["step"]["zzzzqq"] = 1
    found = diagnostics_of(as_text(flow))
    assert [d.labels[0].text for d in found if d.code == "FR0103"] == ["not a key of `step`"]


def test_many_faults_in_one_run() -> None:
    text = changed(
        GRPO,
        ("loss: ppo", "los: ppo"), ("estimator: grpo", "estimator: 3"), ("prompts: 8", "prompts: 0"),
        ("reward.score ->", "reward ->"), ("Qwen/Qwen2.5-7B", '"{{ base }}"'),
    )  # fmt: skip
    assert sorted(codes(text)) == ["FR0102", "FR0103", "FR0104", "FR0110", "FR0115"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reward: {function", "more: {kind: filter, rule: zero_spread}\n  reward: {function"),
        ("{source: train.jsonl}", "{mix: {a: 1.0}}"),
        ("{source: train.jsonl}", "{source: train.jsonl, images: i}"),
        ("{source: Qwen/Qwen2.5-7B}", "{source: x, head: denoiser}"),
        ("step: {prompts: 8,", "step: {refill: {max_rounds: 2}, prompts: 8,"),
        ("step:", "schedule: {when_stale: drop}\nstep:"),
        ("step:", "run: {loggers: [tensorboard, wandb]}\nstep:"),
        ("actor_train => actor_infer", "actor_infer.generate <-> reward.step"),
        ("{max_response_tokens: 64}", "{max_response_tokens: 64}, generate@val: {max_turn_tokens: 3}"),
    ],
)
def test_the_whole_language_parses(old: str, new: str) -> None:
    """Also what cannot run yet: that is for `run` to refuse."""
    assert codes(changed(GRPO, (old, new))) == []


def test_expected_types_in_words() -> None:
    tree = json.loads("{}")
    assert tree == {}
    annotations = {name: field.annotation for name, field in FlowDocument.model_fields.items()}
    assert expected(annotations["cluster"]) == "text or a mapping"
    assert expected(annotations["allow"]) == "a list"
    assert expected(EdgeDocument.model_fields["on_timeout"].annotation) == "one of retry, drop, abort"


def test_annotation_of_a_path() -> None:
    from flowrl.spec.yaml_tree import read_yaml

    root = read_yaml(GRPO, "a.yaml")
    assert root is not None
    found = annotation_at(FlowDocument, root, ("roles", "actor_train", "update", "clip_ratio"))
    assert expected(found) == "a number or a mapping {low, high}"
    assert annotation_at(FlowDocument, root, ("roles", "reward", "update")) is None


def test_loading_is_quick() -> None:
    """Alone on a machine 5 ms for a flow of nine roles and 0.2 s to import; the bounds leave room for busy ones."""
    file = ROOT / "examples" / "flows" / "07-debate-two-policies.yaml"
    load(file)
    start = time.process_time()
    load(file)
    assert time.process_time() - start < 0.1
    script = "import time; s = time.process_time(); import flowrl.spec; print(time.process_time() - s)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1.0
