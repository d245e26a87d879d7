"""What checking says of data files: the first rows of those that are there, and nothing of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api

FLOW = """
flowrl: 1
name: data
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 1}
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 4, ffn_size: 128,
             max_positions: 64}
data:
  a: {source: a.jsonl, prompt: q, keep: [level], response: r, max_prompt_tokens: 8}
  b: {source: b.jsonl, prompt: text, response: r, max_prompt_tokens: 8}
  train: {mix: {a: 0.5, b: 0.5}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: sft}}
edges: ["data.SET -> actor_train.update"]
step: {prompts: 4}
"""
GOOD = b'{"q": "1+1", "r": "2", "level": 1}\n'
TALK = b'{"q": [{"role": "user", "content": "1+1"}], "r": "2", "level": null}\n'


def told(folder: Path, files: dict[str, bytes], name: str = "a") -> list[str]:
    (folder / "flow.yaml").write_text(FLOW.replace("SET", name), encoding="utf-8")
    for file, text in files.items():
        (folder / file).write_bytes(text)
    return [each.code for each in api.check(folder / "flow.yaml").diagnostics]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (GOOD, []),
        (TALK + GOOD, []),
        (b"\n\n" + GOOD, []),
        (GOOD + b'{"q": "1", "r": "2"}\n', ["FR0812"]),
        (GOOD + b'{"q": "1", "r": 2, "level": 1}\n', ["FR0817"]),
        (b'{"q": 7, "r": "2", "level": 1}\n', ["FR0805"]),
        (b'{"q": [], "r": "2", "level": 1}\n', ["FR0805"]),
        (b'{"q": [{"role": "user"}], "r": "2", "level": 1}\n', ["FR0805"]),
        (b"[1, 2]\n", ["FR0811"]),
        (b"\xff\xfe\n", ["FR0811"]),
        (b"[" * 100_000 + b"\n", ["FR0811"]),
        (b"", ["FR0813"]),
        (GOOD * 64 + b"nothing that anybody reads", []),
        (b" " * (2 << 20), []),
    ],
)
def test_first_rows_are_looked_at(tmp_path: Path, text: bytes, codes: list[str]) -> None:
    assert told(tmp_path, {"a.jsonl": text}) == codes


def test_a_file_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW.replace("SET", "a"), encoding="utf-8")
    assert not [each for each in api.check(tmp_path / "flow.yaml").diagnostics if each.severity == "error"]


def test_each_source_of_a_mix_is_looked_at_with_its_own_columns(tmp_path: Path) -> None:
    rows = {"a.jsonl": GOOD, "b.jsonl": b'{"text": "1+1", "r": "2"}\n'}
    assert told(tmp_path, rows, "train") == []
    assert told(tmp_path, rows | {"b.jsonl": GOOD}, "train") == ["FR0812"]
    assert told(tmp_path, {"a.jsonl": b"", "b.jsonl": GOOD}, "train") == ["FR0813", "FR0812"]


def test_nothing_is_planned_over_a_wrong_column(tmp_path: Path) -> None:
    told(tmp_path, {"a.jsonl": b'{"q": "1"}\n'})
    with pytest.raises(Exception, match="FR0812"):
        api.plan(tmp_path / "flow.yaml")
