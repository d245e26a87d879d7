"""Rows for the data files that a flow names, and rewards that a model of random weights can change.

The data of the examples are not in the repository: rows with the columns that the flow names take their place. A random
model never writes `\\boxed{42}`, so to each reward, judge's reading and turn in a game of GEM a tenth is added: of what
share of the text is lower-case letters. The functions and games themselves run as they are.
"""

from __future__ import annotations

import ast
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flowrl.api.compile import compile_spec
from flowrl.graph.params import DataParams, EnvParams, ScoreParams
from flowrl.spec import load

ROWS = 24
WIDTH, HEIGHT = 48, 64
"""Pixels of a screenshot."""
GRADED = """
def _graded(texts):
    return [0.1 * sum(c.islower() for c in str(text)) / max(1, len(str(text))) for text in texts]
"""
SCORE = f"""{GRADED}

def score(response, answer):
    return [10 * each for each in _graded(response)]
"""
COMPARE = """

def compare(prompt, response):
    scores = _graded(response)
    return [sum(own > other for other in scores) / max(1, len(scores) - 1) for own in scores]
"""

GAME = """{grade}

from flowrl.backends.envs.of_gem import maker


class Graded:
    def __init__(self, {parameters}):
        self._own = maker("{id}")({arguments})

    def reset(self, *, seed=None, options=None):
        return self._own.reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, *rest = self._own.step(action)
        return observation, reward + _graded([action])[0], *rest

    def close(self):
        self._own.close()
"""


def stand_in(flow: Path) -> None:
    """Write the data files of a flow that are not there, and put a grade beside its reward functions."""
    functions: dict[str, set[str]] = {}
    for params in _params(flow):
        if isinstance(params, DataParams):
            for each in _sources(params):
                _write_rows(flow.parent, each)
        elif isinstance(params, ScoreParams) and params.function and ".py:" in params.function:
            file, _, name = params.function.partition(":")
            functions.setdefault(file, set()).add(name)
        elif isinstance(params, EnvParams) and params.env.startswith("gem:"):
            _grade_game(flow, params)
    for file, names in functions.items():
        if not (flow.parent / file).read_text().startswith(GRADED):
            _grade(flow.parent / file, names)


def _params(flow: Path) -> Iterator[Any]:
    plan = compile_spec(load(flow))
    for stage in plan.stages:
        yield from (op.params for op in stage.graph.ops)


def _sources(params: DataParams) -> Iterator[DataParams]:
    if params.sources:
        for source in params.sources.values():
            yield from _sources(source)
    elif params.source and ".py:" not in params.source:
        yield params


def _write_rows(folder: Path, params: DataParams) -> None:
    path = folder / params.source
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [{} for _ in range(ROWS)]
    for number, row in enumerate(known):
        for column in (params.prompt, params.response, params.chosen, params.rejected, *params.keep):
            if column is not None:
                row.setdefault(column, _value(column, number, is_prompt=column == params.prompt))
        if params.images is not None:
            row.setdefault(params.images, _screenshot(path.parent, number))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in known))


def _value(column: str, number: int, *, is_prompt: bool) -> object:
    if is_prompt:
        return f"What is {number} + {number % 7}?"
    if column == "action":
        return {"action": "type", "text": f"{number}"}
    if column == "tests":
        return f"assert answer() == {number}"
    return f"{number} is {'wrong' if column == 'wrong' else 'right'}"


def stand_in_judge(flow: Path) -> None:
    """A model behind each endpoint that the flow names, on this host, until the process ends: it gives the score that
    the share of lower-case letters earns."""
    text = flow.read_text()
    for url in re.findall(r'endpoint: "(https://[^"]+)"', text):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Judge)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = text.replace(url, f"http://127.0.0.1:{server.server_port}/v1")
    flow.write_text(text)


class _Judge(BaseHTTPRequestHandler):
    """Answers as the judges of the examples do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "judge"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        answer = str(asked).rpartition("Answer:")[2].strip()
        share = sum(letter.islower() for letter in answer) / max(1, len(answer))
        self._reply({"choices": [{"message": {"role": "assistant", "content": f"Score: {10 * share:.2f}"}}]})

    def _reply(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """The table is what is to be read."""


def _screenshot(folder: Path, number: int) -> str:
    """The name of an image file in `folder`: a dark screen with a bright row, another one for each number."""
    name = f"screen{number}.png"
    rows = [bytes([0, *([255 if row == number else 40] * 3 * WIDTH)]) for row in range(HEIGHT)]
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return name


def _grade_game(flow: Path, params: EnvParams) -> None:
    """The game behind a class of the flow's own, which adds the grade of each turn."""
    text = flow.read_text()
    if params.env not in text:
        return
    game = GAME.format(
        grade=GRADED.strip(),
        id=params.env.removeprefix("gem:"),
        parameters=", ".join(f"{name}={value!r}" for name, value in params.args.items()),
        arguments=", ".join(f"{name}={name}" for name in params.args),
    )
    (flow.parent / "graded_game.py").write_text(game)
    flow.write_text(text.replace(params.env, "graded_game.py:Graded"))


def _grade(file: Path, names: set[str]) -> None:
    """The file under another name, and in its place one with the same functions, each with the grade on top."""
    own = file.with_name(f"own_{file.name}")
    own.write_text(file.read_text())
    found = {f.name: f for f in ast.parse(own.read_text()).body if isinstance(f, ast.FunctionDef)}
    parts = [GRADED.lstrip(), f"import {own.stem} as _own\n"]
    for name in sorted(names):
        parameters = [each.arg for each in found[name].args.args]
        text = "response" if "response" in parameters else parameters[0]
        call = ", ".join(f"{each}={each}" for each in parameters)
        parts.append(
            f"def {name}({', '.join(parameters)}):\n"
            f"    own = _own.{name}({call})\n"
            f"    return [a + b for a, b in zip(own, _graded({text}))]\n"
        )
    others = [f"{name} = _own.{name}\n" for name in found if name not in names]
    file.write_text("\n\n".join([*parts, *others]))
