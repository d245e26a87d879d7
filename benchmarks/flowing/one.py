"""Runs one case, small, in a process of its own, and says what came out.

The process is forked from one that has imported what runs, so that thirty cases import it once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.flowing.cases import Case, put
from flowrl import api
from flowrl.api.preflight import preflight
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.launchers.choose import INLINE
from flowrl.runtime.rehearsal import RehearsalOptions, rehearse
from flowrl.runtime.rehearse import Small
from flowrl.runtime.session import SessionOptions

REWARDS = (".rewards", ".success")
MOST_SECONDS = 1200.0
PRELOADED = (
    "flowrl.runtime.rehearsal",
    "flowrl.backends.trainers.fsdp.trainer",
    "flowrl.backends.trainers.fsdp.scorer",
    "flowrl.backends.generators.hf",
    "flowrl.backends.estimators.estimator",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.auto.modeling_auto",
)


def apart(case: Case, steps: int) -> dict[str, Any]:
    """`run_case` in a process of its own: also `failed`, the last line of what went wrong there, or that it took too
    long."""
    for name in PRELOADED:
        import_module(name)
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(case, steps, its))
    process.start()
    its.close()
    told = mine.poll(MOST_SECONDS)
    try:
        return mine.recv() if told else {"failed": f"not done after {MOST_SECONDS:.0f} s"}
    except EOFError:
        return {"failed": "its process ended without a word"}
    finally:
        if not told:
            process.kill()
        process.join()


def _child(case: Case, steps: int, out: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        out.send(run_case(case, steps))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        out.send({"failed": f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"})


def run_case(case: Case, steps: int) -> dict[str, Any]:
    """`losses` and `rewards` by metric, a number for each step (of each stage), or `refused`: codes and words."""
    start = time.process_time()
    with tempfile.TemporaryDirectory(prefix="flowrl-flows-") as made:
        folder = Path(made)
        try:
            file = put(case, folder)
            os.chdir(folder)
            plan = api.plan(file)
            if plan.verdict == "infeasible":
                raise FlowError(plan.diagnostics)
            done = rehearse(plan, _options(folder, steps))
        except FlowError as error:
            told = [d for d in error.diagnostics if d.severity == "error"]
            return {"refused": [f"{d.code}: {d.labels[0].text if d.labels else d.headline}" for d in told]}
        lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    return _series(lines) | {"seconds": round(time.process_time() - start, 1)}


def _options(folder: Path, steps: int) -> RehearsalOptions:
    """One thread: two would wait for each other on a machine that others use."""
    session = SessionOptions(progress=False, threads=1)
    small = Small(steps=steps, ranks=1)
    return RehearsalOptions(small, INLINE, folder / "runs", folder, preflight, session=session)


def _series(lines: list[dict[str, Any]]) -> dict[str, Any]:
    losses: dict[str, list[float]] = {}
    rewards: dict[str, list[float]] = {}
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    for line in lines:
        prefix = f"{line['stage']}/" if len(stages) > 1 else ""
        for name, value in line.items():
            bare = name.partition("@")[0]
            if bare.endswith(".loss"):
                losses.setdefault(prefix + name, []).append(value)
            if bare.endswith(REWARDS):
                rewards.setdefault(prefix + name, []).append(value)
    return {"steps": len(lines), "losses": losses, "rewards": rewards}
