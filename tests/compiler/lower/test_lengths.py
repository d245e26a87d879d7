"""Lengths of responses from a data set: counted by the rule that is printed, against real tokenizers and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flowrl.compiler.lower import lengths
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import Assumption
from flowrl.spec import loads
from tests.backends.tiny import make_tiny
from tests.placement.told import told_text

INLINE = (
    "{architecture: qwen2, tokenizer: bytes, hidden_size: 64, layers: 2, heads: 4, ffn_size: 96, max_positions: 64}"
)
FLOW = """
flowrl: 1
name: counted
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 1}
models: {policy: {source: MODEL}}
data:
  train: {source: train.jsonl, max_prompt_tokens: 512}
  solved: DATA
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 512}, generate@val: {temperature: 0}}
  reward: {function: "rewards.py:score"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - data.solved -> actor_infer.generate@val
  - actor_infer.generate -> reward.score
  - actor_infer.generate@val -> reward.score@val
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
assume: {actor_infer.generate: {response_tokens: SAID}}
"""


def flow(data: str, said: str = "{data: solved}", model: str = "Qwen/Qwen2.5-0.5B") -> str:
    return FLOW.replace("DATA", data).replace("SAID", said).replace("MODEL", model)


def assumed(text: str, folder: Path) -> Assumption:
    return lower_placement(loads(text, folder=str(folder)), 0).assume["actor_infer.generate"]


def written(folder: Path, *rows: Any) -> None:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "rewards.py").write_text("def score(response: list[str]) -> list[float]: ...\n", encoding="utf-8")
    (folder / "solved.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def problem(text: str, folder: Path) -> str:
    with pytest.raises(FlowError) as caught:
        assumed(text, folder)
    (told,) = caught.value.diagnostics
    assert told.code == "FR0526"
    return str(told)


SOLVED = "{source: solved.jsonl, response: solution}"


def test_a_token_is_four_bytes_and_one_ends_it(tmp_path: Path) -> None:
    """By hand: 0, 1, 4, 5 and 6 bytes (`ü` and `é` have two each) are 0, 1, 1, 2 and 2 tokens, and one more each."""
    written(tmp_path, *({"solution": each} for each in ("", "a", "abcd", "abcde", "aüéb")))
    found = assumed(flow(SOLVED), tmp_path)
    assert found.response_lengths == (1, 2, 2, 3, 3)
    assert found.response_tokens == pytest.approx(11 / 5)
    assert found.response_rule == "responses of data.solved (rule: a token is 4 bytes of text, and one more ends it)"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library's own, as a run makes it for an inline model with the vocabulary `bytes`."""
    return AutoTokenizer.from_pretrained(make_tiny(tmp_path_factory.mktemp("model"), tokenizer="bytes"))


TEXTS = ("2", "naïve", "x² = 4\n\n\tso x = 2", "長い答え", "🙂")


def test_a_vocabulary_of_bytes_is_counted_as_its_tokenizer_does(tokenizer: Any, tmp_path: Path) -> None:
    written(tmp_path, *({"solution": each} for each in TEXTS))
    found = assumed(flow(SOLVED, model=INLINE), tmp_path)
    assert found.response_lengths == tuple(len(tokenizer(each)["input_ids"]) + 1 for each in TEXTS)
    assert "a token is 1 byte of text" in found.response_rule


def test_both_responses_of_a_pair_count(tmp_path: Path) -> None:
    written(tmp_path, {"better": "a" * 8, "worse": "b" * 40}, {"better": "c" * 12, "worse": None})
    pairs = "{source: solved.jsonl, chosen: better, rejected: worse}"
    assert lengths.texts_in(tmp_path / "solved.jsonl", ["better", "worse"]) == [8, 40, 12]
    assert assumed(flow(pairs), tmp_path).response_lengths == (3, 11, 4)


def test_rows_without_a_text_are_left_out(tmp_path: Path) -> None:
    rows = ({"solution": "four"}, {"solution": 7}, {"other": "text"}, [1], "no JSON", "[" * 100_000, '"text"', "")
    written(tmp_path, *rows, {"solution": "\udcff"})
    assert assumed(flow(SOLVED), tmp_path).response_lengths == (2, 2)


def test_no_more_than_the_first_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, *({"solution": "a" * (4 * place)} for place in range(9)))
    monkeypatch.setattr(lengths, "ROWS", 3)
    assert assumed(flow(SOLVED), tmp_path).response_lengths == (1, 2, 3)
    monkeypatch.setattr(lengths, "MOST_CHARACTERS", len('{"solution": ""}\n') * 2 + 4)
    assert assumed(flow(SOLVED), tmp_path).response_lengths == (1, 2)


def test_the_plan_says_what_was_counted(tmp_path: Path) -> None:
    """Half have 100 tokens, half 300: the mean is 200, and no response is longer than `max_response_tokens`."""
    written(tmp_path, {"solution": "a" * 396}, {"solution": "b" * 1196})
    told = told_text(flow(SOLVED), folder=str(tmp_path))
    found = Workload(told.graph, told.shapes, told.request).lengths(told.graph.op("actor_infer.generate"))
    assert (found.response_mean.value, found.response_tail.value) == (200, 300)
    assert found.response_mean.origin.startswith("mean of 2 responses of data.solved (rule: a token is 4 bytes of text")
    written(tmp_path, {"solution": "a" * 40_000})
    told = told_text(flow(SOLVED), folder=str(tmp_path))
    found = Workload(told.graph, told.shapes, told.request).lengths(told.graph.op("actor_infer.generate"))
    assert (found.response_mean.value, found.response_tail.value) == (512, 512)


@pytest.mark.parametrize(
    ("data", "said", "expected"),
    [
        (SOLVED, "{data: sovled}", "no data set `sovled`; a near name exists: `solved`"),
        (SOLVED, "{data: zzzzz}", "no data set `zzzzz`; there are: solved, train"),
        (SOLVED, "{data: solved, samples: solved.jsonl}", "two sources of the same lengths"),
        (SOLVED, "{p99: 9}", "none of `mean`, `samples` and `data` is given"),
        (SOLVED, "{data: train}", "`data.train` names no column with a `response`, `chosen` or `rejected`"),
        ("{seeds: 9}", "{data: solved}", "`data.solved` has numbered prompts without text"),
        ("{mix: {train: 1.0}}", "{data: solved}", "`data.solved` is a mix: name one of its data sets"),
        (
            '{source: "rows.py:make", response: solution}',
            "{data: solved}",
            "is made by a function, and a plan calls none",
        ),
        ("{source: gone.jsonl, response: solution}", "{data: solved}", "is in `gone.jsonl`, which is not there"),
        ("{source: /dev/zero, response: solution}", "{data: solved}", "is in `/dev/zero`, which is not there"),
        (
            "{source: solved.jsonl, response: answer}",
            "{data: solved}",
            "no row of `solved.jsonl` has a text in `answer`",
        ),
    ],
)
def test_what_cannot_be_counted_is_told(data: str, said: str, expected: str, tmp_path: Path) -> None:
    written(tmp_path, {"solution": "four"})
    (tmp_path / "rows.py").write_text("raise SystemExit('a plan calls no function')\n")
    assert expected in problem(flow(data, said), tmp_path)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "solved.jsonl").write_bytes(b'{"solution": "\xff"}\n')
    assert "`solved.jsonl`: it is not utf-8 text" in problem(flow(SOLVED), tmp_path)
    (tmp_path / "solved.jsonl").write_text("x" * lengths.LONGEST_LINE)
    assert f"a line has {lengths.LONGEST_LINE:,} characters or more" in problem(flow(SOLVED), tmp_path)
