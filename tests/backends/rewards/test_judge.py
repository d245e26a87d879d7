"""Judges: templates, answers and what is made of them; served by a small server, and by a tiny model of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup
from flowrl.backends.models import materialise
from flowrl.backends.registry import make_rank
from flowrl.backends.rewards import endpoint as endpoints
from flowrl.backends.rewards.host import host_reward
from flowrl.backends.rewards.judge import JudgeReward, first_parameter, pairs_of, shares_of
from flowrl.backends.rewards.judge_model import generate_params
from flowrl.backends.rewards.judge_template import JudgeTemplate
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Layout
from tests.backends.placed import INLINE, REWARD, placed
from tests.backends.rewards.served import Reply, Served, said, served
from tests.conftest import Told

FILES = {
    "judge.j2": "Q: {{ prompt }}\nA: {{ response }}\nScore?",
    "pair.j2": "{{ prompt }}: {{ first }} or {{ second }}?",
    "parse.py": "def score(reply):\n    return [float(text) for text in reply]\n\n\n"
    "async def better(said):\n    return [1.0 if text == 'A' else 0.0 for text in said]\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "FIRST_WAIT_SECONDS", 0.0)


def graph_of(folder: Path, url: str, keys: str = "", op: str = "score") -> Graph:
    judge = f'judge: {{template: judge.j2, parse: "parse.py:score", endpoint: "{url}"}}'
    changes = {REWARD: f"reward: {{{judge}{keys}}}"}
    if op == "compare":
        pair = judge.replace("judge.j2", "pair.j2").replace("score", "better")
        changes = {
            REWARD: f"reward: {{{pair}{keys}}}",
            "-> reward.score, actor": "-> reward.compare, actor",
            "- reward.score, actor": "- reward.compare, actor",
        }
    return placed(folder, changes)


def setup_of(graph: Graph, folder: Path, **more: Any) -> RankSetup:
    ops = tuple(op for op in graph.ops if op.role == "reward")
    return RankSetup(
        role=graph.role("reward"), model=None, model_folder=None, layout=Layout(), folder=folder, ops=ops, **more
    )


def batch(responses: tuple[str, ...], each: int = 2) -> Batch:
    prompts = np.arange(len(responses), dtype=np.int64) // each
    ids = (prompts << 16) + np.arange(len(responses)) % each
    return Batch(ids, prompts, {"prompt": tuple(f"q{p}" for p in prompts), "response": responses})


def rewards(graph: Graph, folder: Path, rows: Batch, op: str = "score") -> tuple[list[float], dict[str, Any]]:
    """What asking and reading give together."""
    asked = {"score": ("ask", "judge_answer"), "compare": ("ask_pairs", "judge_answers")}[op]
    with closing(host_reward(setup_of(graph, folder))) as judge:
        assert isinstance(judge, JudgeReward)
        answers = judge.call(Call(op=graph.op(f"reward.{asked[0]}"), step=1, seed=0), rows)
        assert answers.batch is not None
        result = judge.call(Call(op=graph.op(f"reward.{op}"), step=1, seed=0), answers.batch)
        assert result.batch is not None
        return result.batch.array("rewards").tolist(), {**answers.metrics, **result.metrics}


def length(body: dict[str, Any], number: int) -> Reply:
    answer = body["messages"][0]["content"].partition("A: ")[2].partition("\n")[0]
    return said(f"{len(answer)}")


def test_each_response_is_asked_about_and_read(folder: Path) -> None:
    with served(length) as server:
        found, metrics = rewards(graph_of(folder, server.url), folder, batch(("a", "bb", "ccc", "{{ prompt }}")))
    assert found == [1.0, 2.0, 3.0, 12.0]  # what fills a template is not read as one
    assert metrics == {"retries": (0.0, 4.0), "rewards": (4.5, 4.0)}
    texts = sorted(body["messages"][0]["content"] for body in server.requests)
    assert texts[0] == "Q: q0\nA: a\nScore?"
    assert {(body["temperature"], body["model"]) for body in server.requests} == {(0.0, "m")}


def longer(body: dict[str, Any], number: int) -> Reply:
    first, second = body["messages"][0]["content"].partition(": ")[2].rstrip("?").split(" or ")
    return said("A" if len(first) > len(second) else "B")


def test_each_pair_of_a_group_is_asked_about(folder: Path) -> None:
    """Three samples a prompt: the longest wins both of its pairs, the second one, the shortest none."""
    rows = batch(("aa", "a", "aaa", "b", "bbb", "bb"), each=3)
    with served(longer) as server:
        graph = graph_of(folder, server.url, op="compare")
        found, _ = rewards(graph, folder, rows, "compare")
    assert found == [0.5, 0.0, 1.0, 0.0, 1.0, 0.5]
    assert len(server.requests) == 6
    shown = {body["messages"][0]["content"] for body in server.requests}
    assert {"q0: aa or a?", "q0: aaa or aa?", "q0: a or aaa?"} <= shown  # the second of three pairs in reverse


def test_pairs_are_shown_in_either_order() -> None:
    pairs = pairs_of(np.asarray([4, 4, 5, 5, 6], dtype=np.int64))
    assert [(pair.first, pair.second, pair.id) for pair in pairs] == [(0, 1, 4 << 16), (3, 2, 5 << 16)]
    won = shares_of(pairs, np.asarray([1.0, 0.25], dtype=np.float32), 5)
    np.testing.assert_array_equal(won, np.asarray([1.0, 0.0, 0.75, 0.25, np.nan], dtype=np.float32))


def broken(body: dict[str, Any], number: int) -> Reply:
    return (400, {"error": "no"}) if "bb" in body["messages"][0]["content"] else length(body, number)


@pytest.mark.parametrize(("on_error", "left"), [("default", [1.0, 0.0, 3.0, 4.0]), ("drop", [3.0, 4.0])])
def test_requests_without_an_answer_fall_to_the_policy(folder: Path, on_error: str, left: list[float]) -> None:
    with served(broken) as server:
        graph = graph_of(folder, server.url, f", on_error: {on_error}")
        found, metrics = rewards(graph, folder, batch(("a", "bb", "ccc", "dddd")))
    assert found == left
    assert metrics["failed"] == (0.25, 4.0)


def test_a_pair_without_an_answer_takes_its_group(folder: Path) -> None:
    with served(lambda body, n: (400, {}) if "bb" in body["messages"][0]["content"] else longer(body, n)) as server:
        graph = graph_of(folder, server.url, ", on_error: drop", op="compare")
        found, _ = rewards(graph, folder, batch(("a", "bb", "ccc", "d")), "compare")
    assert found == [1.0, 0.0]


def test_answers_that_cannot_be_read_fall_to_the_policy(folder: Path) -> None:
    with served(lambda body, number: said("none") if "bb" in str(body) else length(body, number)) as server:
        graph = graph_of(folder, server.url, ", on_error: default")
        found, metrics = rewards(graph, folder, batch(("a", "bb")))
    assert found == [1.0, 0.0]
    assert metrics["failed"] == (0.5, 2.0)


def test_no_rows(folder: Path) -> None:
    with served(length) as server:
        for op in ("score", "compare"):
            found, _ = rewards(graph_of(folder, server.url, op=op), folder, batch(()), op)
            assert found == []
    assert not server.requests


@pytest.fixture
def silent() -> Iterator[Served]:
    with served(lambda body, number: (401, {"error": "no key"})) as server:
        yield server


def test_an_endpoint_without_an_answer_is_told(folder: Path, told: Told, silent: Served) -> None:
    graph = graph_of(folder, silent.url)
    with pytest.raises(FlowError) as failed:
        rewards(graph, folder, batch(("a", "b")))
    text = (folder / "flow.yaml").read_text().replace(silent.url, "http://127.0.0.1:8000/v1")
    (folder / "flow.yaml").write_text(text)
    told(failed.value, "FR0874")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{{ promt }}", "promt"), ("{{ prompt", "unexpected end"), ("{{ ().__class__.__bases__ }}", "unsafe"),
     ("{% include 'x' %}", "no loader")],
)  # fmt: skip
def test_templates_that_cannot_be_filled(folder: Path, text: str, problem: str) -> None:
    (folder / "judge.j2").write_text(text)
    with pytest.raises(FlowError, match=problem) as failed:
        JudgeTemplate("judge.j2", folder, "reward", None).filled("q", response="a")
    assert failed.value.diagnostics[0].code == "FR0874"


def test_prompts_of_messages_become_text(folder: Path) -> None:
    template = JudgeTemplate("judge.j2", folder, "reward", None)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.filled(messages, response="a").startswith("Q: system: Be brief.\n\nuser: Hi\nA: a")
    assert template.filled(messages[1:], response="a").startswith("Q: Hi\nA: a")


def test_addresses_and_parameters(folder: Path) -> None:
    with pytest.raises(FlowError, match="no http"):
        host_reward(setup_of(graph_of(folder, "judge:8000"), folder))
    assert first_parameter("parse.py:better", folder) == "said"
    greedy = generate_params({})
    assert (greedy.temperature, greedy.max_response_tokens) == (0.0, 256)
    assert generate_params({"max_response_tokens": 8, "stop": ["\n"], "temperature": 0.5}).stop == ("\n",)


def test_a_judge_with_a_model_of_its_own(folder: Path) -> None:
    """A tiny model whose answers say nothing: the same whatever rows stand beside them, and read by the function."""
    (folder / "parse.py").write_text("def score(reply):\n    return [float(len(text)) for text in reply]\n")
    own = 'judge: {template: judge.j2, parse: "parse.py:score"}, model: judge_lm, backend: hf'
    small = INLINE.replace("characters", "bytes").replace("96}", "256}")
    more = {
        REWARD: f"reward: {{{own}, generate: {{max_response_tokens: 5, temperature: 1.0}}}}",
        "data:\n": f"  judge_lm:\n    {small}\n    dtype: float32\ndata:\n",
    }
    graph = placed(folder, more)
    model = graph.model("judge_lm")
    made = materialise(model, folder, folder / "m", 0)
    ops = tuple(op for op in graph.ops if op.role == "reward")
    setup = RankSetup(
        role=graph.role("reward"),
        model=model,
        model_folder=made,
        layout=Layout(),
        folder=folder,
        ops=ops,
        max_tokens=96,
    )
    with closing(make_rank(setup)) as judge:
        ask = Call(op=graph.op("reward.ask"), step=1, seed=7)
        rows = batch(("a", "bb", "ccc", "dddd"))
        whole = judge.call(ask, rows).batch
        assert whole is not None
        part = judge.call(ask, rows.select([2, 3])).batch
        assert part is not None
        answers = whole.objects("judge_answer")
        assert part.objects("judge_answer") == answers[2:]
        assert len(set(answers)) > 1
        result = judge.call(Call(op=graph.op("reward.score"), step=1, seed=7), whole).batch
        assert result is not None
        assert result.array("rewards").tolist() == [float(len(f"{answer}")) for answer in answers]
        judge.offload()
        judge.load()
        assert not hasattr(judge, "wake_cache")
