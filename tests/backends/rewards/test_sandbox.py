"""The reward by a sandbox: tests of rows against code of responses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.rewards.host import host_reward
from flowrl.backends.rewards.sandbox import code_of, read_tests
from flowrl.backends.sandbox.sandbox import Test
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import ScoreParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from tests.backends.placed import REWARD, TRAIN, placed
from tests.conftest import Told

BLOCK: Mapping[str, object] = {
    "image": "py311", "tests": "tests", "timeout_seconds": 1.0, "memory_bytes": 128 << 20, "score": "share",
    "isolation": "namespaces",
}  # fmt: skip
ADD = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
TESTS = ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]


def batch(responses: tuple[str, ...], tests: tuple[object, ...]) -> Batch:
    """One prompt for two rows."""
    prompts = np.arange(len(responses), dtype=np.int64) // 2
    ids = (prompts << 16) + np.arange(len(responses)) % 2
    return Batch(ids, prompts, {"response": responses, "tests": tests})


def score(folder: Path, rows: Batch, on_error: str = "abort", **block: object) -> Result:
    params = ScoreParams(flavour="sandbox", extra={"sandbox": {**BLOCK, **block}})
    op = Op(id="reward.score", role="reward", method="score", granularity=Granularity.SAMPLE, params=params)
    return called(folder, op, rows, on_error)


def called(folder: Path, op: Op, rows: Batch, on_error: str = "abort", role: Role | None = None) -> Result:
    role = role or Role(name="reward", kind=Kind.REWARD, on_error=on_error)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    with closing(host_reward(setup)) as reward:
        return reward.call(Call(op=op, step=1, seed=0), rows)


def test_the_share_of_tests_that_pass_and_what_ended_the_rest(tmp_path: Path) -> None:
    rows = batch((ADD, "def add(a, b): return 4", "while True: pass", "no code"), (TESTS, TESTS, "pass", TESTS))
    result = score(tmp_path, rows)
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [0.5, 0.5, 0.0, 0.0]
    assert result.batch.array("rewards").dtype == np.float32
    assert result.metrics["rewards"] == (0.25, 4.0)
    assert result.metrics["ended_by_time"] == (0.25, 4.0)
    assert result.metrics["ended_by_memory"] == (0.0, 4.0)


def test_all_or_nothing(tmp_path: Path) -> None:
    result = score(tmp_path, batch((ADD, ADD), (TESTS, TESTS[:1])), score="all", parallel=1)
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("on_error", "left"), [("default", [1.0, 0.0, 1.0, 1.0]), ("drop", [1.0, 1.0])])
def test_rows_without_tests_fall_to_the_policy(tmp_path: Path, on_error: str, left: list[float]) -> None:
    rows = batch((ADD,) * 4, (TESTS[:1], None, TESTS[:1], TESTS[0]))
    result = score(tmp_path, rows, on_error)
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == left
    assert result.metrics["failed"] == (0.25, 4.0)


def test_no_rows(tmp_path: Path) -> None:
    result = score(tmp_path, batch((), ()), isolation="limits")
    assert result.batch is not None
    assert len(result.batch) == 0


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\na\n```\nor\n```\nb\n```", "b\n"),
        ("```py\nnever closed", "never closed"),
        ("```js\nlet a\n```", "```js\nlet a\n```"),
    ],
)
def test_the_last_block_of_a_response_is_its_code(response: str, code: str) -> None:
    assert code_of(response) == code


def test_forms_of_tests() -> None:
    pair = {"input": "1\n", "output": "2"}
    assert read_tests("assert x") == (Test(text="assert x"),)
    assert read_tests(["a", pair]) == (Test(text="a"), Test(input="1\n", output="2"))
    for wrong in (None, 3, [], {}, {"input": "1"}, [["a"]], {"input": 1, "output": "2"}):
        assert isinstance(read_tests(wrong), str)


def in_flow(folder: Path, keys: str = "") -> tuple[Op, Role]:
    """The op and the role of a flow that runs tests."""
    changes = {
        REWARD: f"reward: {{sandbox: {{image: py311, tests: tests{keys}}}}}",
        TRAIN: TRAIN.replace("prompt: question", "prompt: question, keep: [tests]"),
    }
    graph = placed(folder, changes)
    return graph.op("reward.score"), graph.role("reward")


def test_tests_of_a_wrong_form_are_told(tmp_path: Path, told: Told) -> None:
    op, role = in_flow(tmp_path, ", isolation: limits")
    with pytest.raises(FlowError) as failed:
        called(tmp_path, op, batch((ADD, ADD), (TESTS, None)), role=role)
    told(failed.value, "FR0872")


def test_an_environment_that_is_not_here_is_told(tmp_path: Path, told: Told) -> None:
    op, role = in_flow(tmp_path)
    assert isinstance(op.params, ScoreParams)
    for image in ("py2.6", "python:3.12-slim"):
        op.params.extra["sandbox"]["image"] = image
        with pytest.raises(FlowError) as failed:
            called(tmp_path, op, batch((), ()), role=role)
    told(failed.value, "FR0871")


def test_a_host_without_namespaces_is_told(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.backends.rewards.sandbox.weaknesses", lambda box, folder: ["the network is reached"])
    op, role = in_flow(tmp_path)
    with pytest.raises(FlowError) as failed:
        called(tmp_path, op, batch((), ()), role=role)
    told(failed.value, "FR0870")
