"""Worker processes that judge mutants one after another. One that dies or hangs is one failure and is replaced."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.draft import Mutant
from benchmarks.fuzzing.judge import Failure, Verdict, judge, limit_process
from benchmarks.fuzzing.mutants import mutant
from benchmarks.fuzzing.seeds import Seed, make_workspace

PATIENCE_SECONDS = 20.0
"""By the clock, after which a worker that does not answer is ended."""
Task = tuple[Mutant | int, bool]
"""A mutant or its number, and whether it is planned too."""

_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class _Worker:
    process: Any
    connection: Connection
    folder: Path
    task: int = -1
    since: float = 0.0


class Pool:
    """`jobs` workers for the mutants of one seed number. Use as a context: the workers end with it."""

    def __init__(self, jobs: int, seed: int, seeds: tuple[Seed, ...]) -> None:
        self.seed = seed
        self.seeds = seeds
        self.folder = Path(tempfile.mkdtemp(prefix="flowrl-fuzz-"))
        self.made = 0
        self.workers = [self._start() for _ in range(jobs)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            self._end(worker)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> _Worker:
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        make_workspace(folder, self.seeds)
        ours, theirs = _FORK.Pipe()
        process = _FORK.Process(target=_work, args=(theirs, folder, self.seed, self.seeds), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, folder)

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        shutil.rmtree(worker.folder, ignore_errors=True)

    def judge_all(self, tasks: list[Task]) -> Iterator[tuple[int, Verdict]]:
        """The verdict of each task by its index, as they come."""
        waiting = list(range(len(tasks)))[::-1]
        while waiting or any(worker.task >= 0 for worker in self.workers):
            for place, worker in enumerate(self.workers):
                if worker.task < 0 and waiting:
                    self.workers[place].task = waiting.pop()
                    worker.since = time.monotonic()
                    worker.connection.send(tasks[worker.task])
            yield from self._answers()

    def _answers(self) -> Iterator[tuple[int, Verdict]]:
        busy = {worker.connection: place for place, worker in enumerate(self.workers) if worker.task >= 0}
        ready = wait(list(busy), timeout=1.0)
        for connection in ready:
            worker = self.workers[busy[connection]]  # type: ignore[index]
            try:
                verdict = worker.connection.recv()
            except (EOFError, ConnectionError):
                worker.process.join(1)
                failure = Failure("died", f"exit {worker.process.exitcode}", "the worker is gone")
                yield self._lost(busy[worker.connection], failure)
                continue
            task, worker.task = worker.task, -1
            yield task, verdict
        for place, worker in enumerate(self.workers):
            if worker.task >= 0 and time.monotonic() - worker.since > PATIENCE_SECONDS:
                yield self._lost(place, Failure("hang", "no answer", f"ended after {PATIENCE_SECONDS:.0f} s"))

    def _lost(self, place: int, failure: Failure) -> tuple[int, Verdict]:
        worker = self.workers[place]
        task = worker.task
        self._end(worker)
        self.workers[place] = self._start()
        return task, Verdict(seconds=PATIENCE_SECONDS, failures=[failure])


def _work(connection: Connection, folder: Path, seed: int, seeds: tuple[Seed, ...]) -> None:
    """The loop of a worker: mutants in, verdicts out."""
    limit_process()
    while True:
        subject, plans = connection.recv()
        made = mutant(subject, seed, seeds) if isinstance(subject, int) else subject
        connection.send(judge(made, folder, plans))
