"""What a flow means does not depend on how it is spelt: order, fan-outs, long edges, comments, anchors, front door."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.spec import FlowBuilder, loads
from flowrl.spec.presets import preset_names, preset_text
from flowrl.spec.roles import DEFAULT_KINDS
from flowrl.spec.tree import plain_value
from flowrl.spec.write import _DUMPER
from flowrl.spec.yaml_tree import read_yaml
from tests.spec.python_jobs import FOLDER, JOBS
from tests.spec.python_replay import fill
from tests.spec.test_identity import again, digests, normal

SCALAR_LOSSES = ("value", "bradley_terry")


def plain(text: str) -> dict[str, Any]:
    root = read_yaml(text, "flow.yaml")
    assert root is not None
    return plain_value(root)


def use_of(preset: str) -> dict[str, Any]:
    """A flow that uses the preset and gives what it leaves open."""
    below = plain(preset_text(preset))
    models: dict[str, Any] = {}
    roles: dict[str, Any] = {}
    for name, role in below["roles"].items():
        kind = role.get("kind", DEFAULT_KINDS.get(name))
        scalar = kind == "reward" or role.get("update", {}).get("loss") in SCALAR_LOSSES
        if "model" in role:
            models[role["model"]] = {"source": "Qwen/Qwen2.5-0.5B-Instruct"} | ({"head": "scalar"} if scalar else {})
        elif kind == "reward" and not {"function", "combine", "router", "judge", "sandbox"} & set(role):
            roles[name] = {
                "kind": kind,
                "judge": {"template": "pair.j2", "parse": "j.py:winner", "endpoint": "http://x"},
            }
            if "compare" not in str(below["edges"]):
                roles[name] = {"kind": kind, "function": "rewards.py:math"}
    columns = {"sft": {"response": "answer"}, "rm": {"chosen": "better", "rejected": "worse"}}
    train = {"source": "data/math.jsonl", "max_prompt_tokens": 64, **columns.get(preset, {"keep": ["answer"]})}
    return {"name": "p", "models": models, "data": {"train": train}, "roles": roles}


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_in_python_in_yaml_and_written_out(preset: str) -> None:
    given = use_of(preset)
    flow = FlowBuilder("p", use=preset, folder=str(FOLDER))
    fill(flow, given, {})
    python = flow.spec()
    by_use = loads(yaml.dump({"flowrl": 1, "use": preset, **given}, Dumper=_DUMPER), folder=str(FOLDER))
    assert normal(python.document) == normal(by_use.document)
    found = again(python)
    assert found.document == python.document
    assert digests(python) == digests(by_use) == digests(found)


@cache
def sources() -> dict[str, dict[str, Any]]:
    jobs = {name: plain((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")) for name in JOBS}
    return jobs | {name: {"flowrl": 1, "use": name, **use_of(name)} for name in preset_names()}


@cache
def expected(name: str) -> tuple[list[str], dict[str, Any]]:
    spec = loads(yaml.dump(sources()[name], Dumper=_DUMPER), folder=str(FOLDER))
    return digests(spec), normal(spec.document)


class Anchored(_DUMPER):
    """Equal collections stand once, with an anchor, and as aliases from then on."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.seen: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return not isinstance(data, dict | list) or not data

    def represent_data(self, data: Any) -> Any:
        return super().represent_data(self.seen.setdefault(repr(data), data) if isinstance(data, dict | list) else data)


@st.composite
def respelt(draw: st.DrawFn, flow: dict[str, Any]) -> str:
    """Another text that says the same."""
    dumper = draw(st.sampled_from([_DUMPER, Anchored]))
    text = yaml.dump(
        _mixed(draw, flow),
        Dumper=dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=draw(st.sampled_from([None, False])),
        width=draw(st.sampled_from([20, 200])),
    )
    return "# a comment\n" + text.replace("\nedges:\n", "\n# another\nedges:  # here\n") + "# the last\n"


def _mixed(draw: st.DrawFn, value: Any, key: str = "") -> Any:
    """Keys in another order, edges as other entries of the same pairs."""
    if isinstance(value, list):
        items = [item for edge in value for item in _edges(draw, edge)] if key == "edges" else value
        if key == "edges" and not any("remove" in str(item) for item in items):
            items = draw(st.permutations(items))
        return [_mixed(draw, item) for item in items]
    if not isinstance(value, dict):
        return value
    return {name: _mixed(draw, value[name], name) for name in draw(st.permutations(list(value)))}


def _edges(draw: st.DrawFn, edge: Any) -> list[Any]:
    long = edge if isinstance(edge, dict) else {"edge": edge}
    text, rest = long["edge"], {key: value for key, value in long.items() if key != "edge"}
    arrow = next(arrow for arrow in ("<->", "->", "=>") if arrow in text)
    sources, targets = ([end.strip() for end in part.split(",")] for part in text.split(arrow))
    texts = [text]
    if draw(st.booleans()) and arrow != "<->":
        texts = [f"{source}  {arrow} {target}" for source in sources for target in targets]
    if rest and "remove" not in rest and draw(st.booleans()):
        return [*texts, *({"edge": other, **rest} for other in texts)]  # the same edge again only adds attributes
    return [{"edge": other, **rest} if rest or draw(st.booleans()) else other for other in texts]


@settings(max_examples=80)
@given(st.data())
def test_digests_do_not_depend_on_the_spelling(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(sources())))
    spec = loads(data.draw(respelt(sources()[name])), folder=str(FOLDER))
    assert (digests(spec), normal(spec.document)) == expected(name)
