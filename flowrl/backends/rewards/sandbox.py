"""The reward of flavour `sandbox`: the code of a response against the tests of its row. Runs in the host pool.

A response's code is its last fenced block, of the language Python or none, or all of it where it has no block. What the
code does wrong is part of its score; a row whose tests cannot be read has none, and falls to `on_error`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.rewards.settled import ABORT, row_name, settled
from flowrl.backends.sandbox.limits import Ended, Isolation, Limits
from flowrl.backends.sandbox.probe import weaknesses
from flowrl.backends.sandbox.sandbox import Outcome, Sandbox, SandboxError, Test
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op, Role
from flowrl.graph.params import ScoreParams

_BLOCK = re.compile(r"```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_PYTHON = re.compile(r"py(\d)\.?(\d+)")
START_SECONDS = 60.0
"""What a Python that is looked for gets to start."""
SHOWN = 60
"""Most characters of a value that is shown."""


class SandboxReward:
    """One rank; it keeps no process between two samples."""

    def __init__(self, setup: RankSetup) -> None:
        self._role = setup.role
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._cores = max(1, cores // setup.world_size)
        self._boxes: dict[str, Sandbox] = {}
        try:
            for op in setup.ops:  # a host that cannot keep code in shall say so before the first step
                self._boxes[op.id] = _box(op, setup.role, setup.folder)
        except BaseException:
            self.close()
            raise

    def call(self, call: Call, batch: Batch) -> Result:
        """score: `response` and the column of tests → `rewards` float32 [rows]."""
        block, box = _block(call.op), self._boxes[call.op.id]
        asked = [
            (code_of(str(response)), read_tests(tests))
            for response, tests in zip(batch.objects("response"), batch.objects(block["tests"]), strict=True)
        ]
        self._require_tests(call.op, batch, [tests for _, tests in asked])
        outcomes = self._run(call.op, box, asked, block.get("parallel") or self._cores)
        whole = block["score"] == "all"
        scores = [None if o is None else float(all(o.passed)) if whole else o.share for o in outcomes]
        rewards = np.asarray([np.nan if score is None else score for score in scores], dtype=np.float32)
        ends = [o.ended for o in outcomes if o is not None]
        counted = {f"ended_by_{each}": (ends.count(each) / len(ends), float(len(ends))) for each in Ended if ends}
        return settled(batch, rewards, self._role.on_error, counted)

    def close(self) -> None:
        boxes, self._boxes = self._boxes, {}
        for box in boxes.values():
            box.close()

    def _require_tests(self, op: Op, batch: Batch, tests: Sequence[Sequence[Test] | str]) -> None:
        wrong = next((row for row, each in enumerate(tests) if isinstance(each, str)), None)
        if wrong is not None and self._role.on_error == ABORT:
            column = _block(op)["tests"]
            span = self._role.span or op.span
            raise FlowError(diagnose("FR0872", span, row=row_name(batch, wrong), column=column, found=tests[wrong]))

    def _run(
        self, op: Op, box: Sandbox, asked: Sequence[tuple[str, Sequence[Test] | str]], parallel: int
    ) -> list[Outcome | None]:
        """The outcome of each row; None where its tests cannot be read."""

        def run(row: tuple[str, Sequence[Test] | str]) -> Outcome | None:
            return None if isinstance(row[1], str) else box.run(row[0], row[1])

        pool = ThreadPoolExecutor(min(parallel, max(1, len(asked))), "sandbox")
        try:
            return list(pool.map(run, asked))
        except SandboxError as error:
            raise FlowError(diagnose("FR0870", self._role.span, role=op.role, reason=f"{error}")) from error
        finally:
            pool.shutdown(cancel_futures=True)


def code_of(response: str) -> str:
    """The code that a response gives."""
    blocks = _BLOCK.findall(response)
    return blocks[-1] if blocks else response


def read_tests(value: object) -> tuple[Test, ...] | str:
    """The tests of a row, or in words what stands in their place."""
    if isinstance(value, str):
        return (Test(text=value),)
    if isinstance(value, Mapping):
        given: Mapping[Any, Any] = value
        pair = given.get("input"), given.get("output")
        if set(given) == {"input", "output"} and isinstance(pair[0], str) and isinstance(pair[1], str):
            return (Test(input=pair[0], output=pair[1]),)
    if isinstance(value, list | tuple) and value:
        each = [read_tests(one) for one in value if not isinstance(one, list | tuple)]
        wrong = [one for one in each if isinstance(one, str)]
        if not wrong and len(each) == len(value):
            return tuple(test for one in each if not isinstance(one, str) for test in one)
    return f"{value!r}"[:SHOWN]


def _block(op: Op) -> Mapping[str, Any]:
    if op.method != "score" or not isinstance(op.params, ScoreParams) or "sandbox" not in op.params.extra:
        raise InternalError(f"a reward by a sandbox has no op {op.id}")
    return op.params.extra["sandbox"]


def _box(op: Op, role: Role, folder: Path) -> Sandbox:
    """The sandbox of an op. Raises FlowError FR0871 for an environment that is not here, FR0870 where the walls do not
    stand."""
    block = _block(op)
    python, prefix = _environment(role, block["image"])
    limits = Limits(float(block["timeout_seconds"]), block["memory_bytes"], Isolation(block["isolation"]))
    box = Sandbox(limits, python, prefix)
    if limits.isolation is Isolation.NAMESPACES:
        try:
            found = weaknesses(box, folder)
        except SandboxError as error:
            found = [f"{error}"]
        if found:
            raise FlowError(diagnose("FR0870", role.span, role=role.name, reason="; ".join(found)))
    return box


def _environment(role: Role, image: str) -> tuple[str, str]:
    """The Python that `image` names, and the folder that it lives in."""
    own = f"py{sys.version_info.major}{sys.version_info.minor}"
    named = _PYTHON.fullmatch(image)
    version = f"{named[1]}.{named[2]}" if named else ""
    if image == own or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable, sys.base_prefix
    found = shutil.which(f"python{version}") if version else None
    prefix = _prefix_of(found) if found else None
    if found is None or prefix is None:
        why = "images of containers are not run" if not version else f"there is no `python{version}` on this host"
        raise FlowError(diagnose("FR0871", role.span, image=image, why=why, known=f"`{own}`"))
    return found, prefix


def _prefix_of(python: str) -> str | None:
    """The folder that a Python lives in; None if it does not start."""
    asked = [python, "-c", "import sys; print(sys.base_prefix)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    return told.stdout.strip() or None if told.returncode == 0 else None
