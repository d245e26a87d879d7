"""A judge behind the real engine's OpenAI-style server on this host: what it answers is what the same model writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call
from flowrl.backends.models import materialise
from flowrl.backends.rewards.host import host_reward
from flowrl.backends.rewards.judge import JudgeReward
from flowrl.graph.graph import Model
from tests.backends.rewards.test_judge import FILES, graph_of, setup_of

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SHAPE = {
    "architecture": "qwen2", "tokenizer": "bytes", "hidden_size": 64, "layers": 2, "heads": 2, "kv_heads": 2,
    "ffn_size": 96, "max_positions": 512,
}  # fmt: skip
TOKENS = 12
START_SECONDS = 400.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("judge")
    materialise(Model(name="judge_lm", source="inline", dtype="float32", inline=dict(SHAPE)), made, made / "m", 3)
    for name, text in FILES.items():
        (made / name).write_text(text)
    (made / "chat.jinja").write_text("Request: {{ messages[0]['content'] }}\nAnswer: ")
    (made / "parse.py").write_text("def score(reply):\n    return [float(len(text)) for text in reply]\n")
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = "--host 127.0.0.1 --max-model-len 512 --enforce-eager --dtype float32 --block-size 32 --served-model-name j"
    more = [
        "--port",
        f"{port}",
        "--model",
        str(folder / "m"),
        "--chat-template",
        str(folder / "chat.jinja"),
        "--kv-cache-memory-bytes",
        f"{64 << 20}",
    ]
    uniproc = ["--distributed-executor-backend", "uni"]
    environment = {
        **os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words.split(), *more, *uniproc]
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, folder / "serve.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-2000:])


def _written(folder: Path, request: str) -> str:
    """What transformers write greedily with the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder / "m"))
    model = AutoModelForCausalLM.from_pretrained(str(folder / "m"), dtype=torch.float32)
    ids = torch.tensor([tokenizer(f"Request: {request}\nAnswer: ", add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def _whole(text: str) -> str:
    """Without the characters at its end of which only some bytes were written; the server leaves these out."""
    return text.rstrip("\ufffd")


def test_answers_of_the_engine_are_read(folder: Path, url: str) -> None:
    graph = graph_of(folder, url, f", generate: {{max_response_tokens: {TOKENS}, temperature: 0.0}}")
    prompts = np.arange(6, dtype=np.int64) // 2
    responses = tuple(f"answer {n}" for n in range(6))
    rows = Batch((prompts << 16) + np.arange(6) % 2, prompts, {"prompt": ("q",) * 6, "response": responses})
    with closing(host_reward(setup_of(graph, folder))) as judge:
        assert isinstance(judge, JudgeReward)
        made = judge.call(Call(op=graph.op("reward.ask"), step=1, seed=0), rows)
        assert made.batch is not None
        answers = made.batch.objects("judge_answer")
        assert made.metrics["retries"] == (0.0, 6.0)
        result = judge.call(Call(op=graph.op("reward.score"), step=1, seed=0), made.batch).batch
    assert result is not None
    wanted = [_written(folder, f"Q: q\nA: {response}\nScore?") for response in responses]
    assert [_whole(f"{answer}") for answer in answers] == [_whole(text) for text in wanted]
    assert len(set(answers)) > 1
    assert result.array("rewards").tolist() == [float(len(f"{answer}")) for answer in answers]
