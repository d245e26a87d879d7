"""plan.json: round trip of random plans, canonical bytes, and strict reading of everything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.plan.digests import digest
from flowrl.plan.io import LARGEST_BYTES, canonical, dumps, loads, read
from flowrl.plan.plan import Digests, Estimate, Plan, StagePlan, StageRun
from tests.placement.flows import PPO
from tests.placement.told import told_text
from tests.plan.strategies import values

SLOW = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))


ESTIMATE = Estimate(
    step_seconds=1.5, samples_per_second=2.0, tokens_per_second=3.0, busy={"all": 0.5}, timeline=(), durations={}
)


def small_plan() -> Plan:
    """The plan of a PPO stage, with an empty estimate."""
    told, run = told_text(PPO), StageRun(steps=2)
    stage = StagePlan(
        name="ppo",
        graph=told.graph,
        pools=told.placement.pools,
        edges=told.graph.edges,
        programs=emit(told.graph, told.placement.pools, run),
        memory=told.placement.memory,
        estimate=Estimate(
            step_seconds=1.5,
            samples_per_second=2.0,
            tokens_per_second=3.0,
            busy={"all": 0.5},
            timeline=(),
            durations={},
        ),
        decisions=told.placement.decisions,
        run=run,
    )
    return Plan(
        name="ppo",
        digests=Digests(flow="f", cluster="c", profile="p", code="d"),
        verdict="fits",
        cluster=told.cluster,
        sources=(),
        run=run,
        stages=(stage,),
    )


PLAN = small_plan()


@SLOW
@given(values(Plan))
def test_any_plan_comes_back_as_it_was(plan: Plan) -> None:
    plan = replace(plan, flowrl_plan=1, digests=replace(plan.digests, plan=""))
    data = dumps(plan)
    assert loads(data) == plan
    assert dumps(loads(data)) == data


def test_a_real_plan_comes_back_as_it_was() -> None:
    assert loads(dumps(PLAN)) == PLAN
    assert dumps(small_plan()) == dumps(PLAN), "the same input gives the same bytes"


def test_bytes_are_canonical() -> None:
    """Keys in order, lines as json of the standard library breaks them, one newline at the end."""
    data = dumps(PLAN)

    def in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
        return dict(pairs)

    plain = json.loads(data, object_pairs_hook=in_order)
    numbers = r"-?\d[\d.e+-]*"
    theirs = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    assert re.sub(numbers, "0", data.decode()) == re.sub(numbers, "0", theirs)
    top = {"flowrl_plan", "name", "digests", "verdict", "cluster", "sources", "run", "stages", "diagnostics"}
    assert top <= set(json.loads(data))


def test_order_of_keys_means_nothing() -> None:
    assert canonical({"b": 1, "a": {"d": 2, "c": 3}}) == canonical({"a": {"c": 3, "d": 2}, "b": 1})


def test_a_number_that_json_has_not_is_our_fault() -> None:
    with pytest.raises(InternalError, match=r"\.seconds"):
        canonical({"seconds": float("inf")})


def code_of(data: bytes) -> str:
    with pytest.raises(FlowError) as caught:
        loads(data)
    return caught.value.diagnostics[0].code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "FR0701"),
        (b"{", "FR0701"),
        (b"\xff\xfe", "FR0701"),
        (b'{"flowrl_plan": NaN}', "FR0701"),
        (b"[" * 100_000, "FR0701"),
        (b"[]", "FR0702"),
        (b"3", "FR0702"),
        (b"{}", "FR0702"),
        (b'{"flowrl_plan": "1"}', "FR0702"),
        (b'{"flowrl_plan": true}', "FR0702"),
        (b'{"flowrl_plan": 2}', "FR0703"),
        (b'{"flowrl_plan": 1}', "FR0704"),
        (b" " * (LARGEST_BYTES + 1), "FR0705"),
    ],
)
def test_what_is_no_plan_is_told(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_an_unknown_key_is_told_with_its_path() -> None:
    plain = json.loads(dumps(PLAN))
    plain["stages"][0]["pools"][0]["colour"] = "red"
    with pytest.raises(FlowError) as caught:
        loads(json.dumps(plain).encode())
    assert "$.stages[0].pools[0].colour" in caught.value.diagnostics[0].labels[0].text


@SLOW
@given(st.data())
def test_a_plan_with_any_one_value_changed_is_read_or_told(data: st.DataObject) -> None:
    """A leaf of a real plan becomes something else: the result is a plan or FR07, never anything worse."""
    plain = json.loads(dumps(PLAN))
    here: Any = plain
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], dict | list) or not here[key]:
            here[key] = data.draw(st.sampled_from([None, 3, -1, 2.5, "x", [], {}, [1], True]))
            break
        here = here[key]
    try:
        loads(json.dumps(plain).encode())
    except FlowError as error:
        assert all(each.code.startswith("FR07") for each in error.diagnostics)  # noqa: PT017


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_told(data: bytes) -> None:
    assert code_of(data) in ("FR0701", "FR0702", "FR0704")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        read(tmp_path / "plan.json")
    assert caught.value.diagnostics[0].code == "FR0706"
    (tmp_path / "plan.json").write_bytes(dumps(PLAN))
    assert read(tmp_path / "plan.json") == PLAN


def test_a_plan_that_was_edited_is_told(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    text = dumps(PLAN).decode()
    for old, new in (('"tp": 1', '"tp": 2'), ('"verdict": "fits"', '"verdict": "infeasible"'), ("1.5", "1.25")):
        assert old in text
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(FlowError) as caught:
            read(file)
        assert [fault.code for fault in caught.value.diagnostics] == ["FR0734"]
        assert loads(file.read_bytes()) != PLAN


def test_how_a_file_is_laid_out_is_no_edit(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(dumps(PLAN))))
    assert read(file) == PLAN


def test_a_plan_without_a_digest_of_its_content_is_read(tmp_path: Path) -> None:
    plain = json.loads(dumps(PLAN))
    del plain["digests"]["plan"]
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    assert read(tmp_path / "plan.json") == PLAN


PLANNING = """
import sys
from flowrl import api
sys.stdout.buffer.write(api.dumps(api.plan(sys.argv[1])))
"""


def test_a_plan_is_the_same_bytes_whatever_the_seed_of_hashes() -> None:
    """Two processes whose sets and dicts of strings are ordered otherwise."""
    flow = str(Path(__file__).parents[2] / "examples" / "ppo_7b.yaml")
    made = [
        subprocess.run(
            [sys.executable, "-c", PLANNING, flow],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1]
    assert loads(made[0]).name == "ppo-7b"


def test_the_schema_accepts_what_is_written() -> None:
    """msgspec's own JSON schema of the Plan, checked by an independent validator."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(dumps(PLAN)), msgspec.json.schema(Plan))


def test_digest_of_a_plan_survives_the_file() -> None:
    assert digest(loads(dumps(PLAN))) == digest(PLAN)
