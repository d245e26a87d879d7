"""RankActor: one rank of one role in a process of its own. A Ray actor around the RoleWorker that inline uses, too.

What it makes is returned in two pieces: an Outcome, small, for the driver; and the rows, which Ray keeps where they
were made and hands to the actors that are given the reference. Exceptions travel inside the Outcome, so that a
FlowError keeps its diagnostics. Imports no Ray: the launcher turns the class into an actor.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Bytes, Call, Gather, Metrics, RankSetup, Result, TensorSpec
from flowrl.backends.envs.conversation import converse
from flowrl.backends.envs.turns import Heard
from flowrl.diag.diagnostic import InternalError
from flowrl.program.program import InstructionKind
from flowrl.runtime.assemble import Source
from flowrl.runtime.launchers.contract import Part
from flowrl.runtime.launchers.ray_pulse import Heart
from flowrl.runtime.launchers.ray_voices import Afar, Replica
from flowrl.runtime.weights import LocalBuffer, SharedBuffer
from flowrl.runtime.worker import MakeRank, RoleWorker, part_of, rows_with


@dataclass(frozen=True, slots=True)
class Address:
    """Where an actor runs, and a port that was free there a moment ago."""

    node: str
    host: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A Source whose batches are given apart: `batches` are places among the batches of the call."""

    slot: str
    field: str
    batches: tuple[int, ...]
    by_prompt: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the driver hears of a call. `part` lacks its handle; `value` is for the launcher itself."""

    start_seconds: float
    """On the monotonic clock of the actor's host."""
    seconds: float
    metrics: Metrics = field(default_factory=dict[str, tuple[float, float]])
    part: Part | None = None
    error: Exception | None = None
    """With the attributes `rank`, `host` and `where` (function, file and line), as runtime/faults.py reads them."""
    value: Any = None


class RankActor:
    """See the module. Every method but `address` returns an Outcome, `run`, `rows` and `export` also their rows."""

    def __init__(self, rank: int, environment: Mapping[str, str], heart: Heart, home: tuple[str, str]) -> None:
        """`environment` is set before the rank's libraries are loaded. (Ray could do it, and would then start every
        process anew instead of taking one that it holds ready.) `home`: node and address of the driver."""
        import ray

        os.environ.update(environment)
        node, address = home
        heart.beat("127.0.0.1" if ray.get_runtime_context().get_node_id() == node else address)
        self._rank = rank
        self._worker: RoleWorker | None = None
        self._meeting = 0
        self._buffers: dict[str, SharedBuffer] = {}
        self._manifests: dict[str, tuple[TensorSpec, ...]] = {}

    def address(self) -> Address:
        import ray

        host = str(ray.util.get_node_ip_address())
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return Address(ray.get_runtime_context().get_node_id(), host, port, os.getpid())

    def start(self, setup: RankSetup, make_rank: MakeRank | None, restore: Path | None) -> Outcome:
        """Make the rank; with `restore`, from that checkpoint folder. All ranks of a role start at once: they meet."""

        def make() -> None:
            self._worker = RoleWorker(setup, make_rank)
            if restore is not None:
                self._worker.restore(restore)

        return self._timed(make)[0]

    def run(self, call: Call, slots: Sequence[Slot], ids: IntArray | None, *batches: Batch) -> tuple[Outcome, Any]:
        return self._rows_of(lambda: self._role.run(call, _sources(slots, batches), ids))

    def open(
        self, call: Call, slots: Sequence[Slot], ids: IntArray | None, given: IntArray | None, *batches: Batch
    ) -> Outcome:
        return self._timed(lambda: self._role.open(call, _sources(slots, batches), ids, given))[0]

    def take(self, number: int, parts: int, by_prompt: bool, gather: Gather | None) -> tuple[Outcome, Any]:
        return self._rows_of(lambda: self._role.take(number, parts, by_prompt, gather))

    def begin(
        self, meeting: int, call: Call, slots: Sequence[Slot], ids: IntArray | None, reset: bool, *batches: Batch
    ) -> Outcome:
        """Begin episodes; the value: ids of their samples, and whether turns are spoken in rounds."""
        self._meeting = meeting

        def begin() -> tuple[IntArray, bool]:
            samples = self._role.begin(call, _sources(slots, batches), ids, reset=reset)
            return samples, self._role.rank.in_rounds

        return self._valued(begin)

    def speak(self, meeting: int, heard: Sequence[Heard], steps: int) -> Outcome:
        """As Speaker. For the environment's actor; one that still talks in an earlier meeting hears an error."""
        if meeting != self._meeting:
            return Outcome(time.monotonic(), 0.0, error=InternalError(f"meeting {meeting} is over"))
        return self._valued(lambda: self._role.rank.speak(heard, steps))

    def finish(self, left: Batch) -> tuple[Outcome, Any]:
        return self._rows_of(lambda: self._role.rank.finish(left))

    def talk(
        self, meeting: int, call: Call, ids: IntArray, agents: Sequence[str], cast: Sequence[Replica], in_rounds: bool
    ) -> tuple[Any, ...]:
        """Of an environment: play the episodes of these samples. Its fields for each agent follow the Outcome."""
        voices = Afar(cast, meeting, in_rounds=in_rounds)
        outcome, left = self._timed(lambda: converse(self._role.rank, voices, agents, call, ids))
        if left is None:
            return (outcome, *(None for _ in agents))
        return (replace(outcome, metrics=left.metrics), *(left.rows[agent] for agent in agents))

    def rows(self, start: int, count: int | None) -> tuple[Outcome, Any]:
        return self._rows_of(lambda: self._role.rows(start, count))

    def move(self, kind: InstructionKind) -> Outcome:
        """Load, offload, one half of a wake-up, or what halts or ends a session."""
        return self._timed(lambda: self._role.move(kind))[0]

    def save(self, folder: Path) -> Outcome:
        return self._timed(lambda: self._role.save(folder))[0]

    def manifest(self, edge: str) -> Outcome:
        return self._valued(lambda: self._role.manifest(edge))

    def create_buffer(self, edge: str, nbytes: int, slots: int, writers: int) -> Outcome:
        """Make the weight buffer of an edge for this actor's host; the value is its name."""

        def create() -> str:
            self._buffers[edge] = SharedBuffer.create(nbytes, slots=slots, writers=writers)
            return self._buffers[edge].name

        return self._valued(create)

    def open_buffer(self, edge: str, name: str | None, manifest: tuple[TensorSpec, ...]) -> Outcome:
        """Get ready for the edge's weights; `name` None: they will come as references, not through shared memory."""

        def open_it() -> None:
            self._manifests[edge] = manifest
            if name is not None and edge not in self._buffers:
                self._buffers[edge] = SharedBuffer.open(name)

        return self._timed(open_it)[0]

    def unlink_buffer(self, edge: str) -> Outcome:
        """Take the buffer's name away; the value is where another process of this host may open it all the same."""

        def unlink() -> str:
            self._buffers[edge].unlink()
            return self._buffers[edge].path

        return self._valued(unlink)

    def renew(self, move: InstructionKind | None) -> Outcome:
        """Forget sessions and weight buffers, for a stage that starts again; with `move`, load or offload."""

        def forget() -> None:
            self._role.forget_session()
            buffers, self._buffers, self._manifests = self._buffers, {}, {}
            for buffer in buffers.values():
                buffer.close()
            if move is not None:
                self._role.move(move)

        return self._timed(forget)[0]

    def write_weights(self, edge: str, version: int) -> Outcome:
        return self._timed(lambda: self._role.write_weights(self._buffers[edge], version, edge))[0]

    def export(self, edge: str, version: int, ranks: Sequence[int], *written: Outcome) -> tuple[Outcome, Any]:
        """This host's part of a version as an object: what its `ranks` wrote, zero elsewhere. `written` are the
        outcomes of their write_weights, so that Ray calls this after them."""
        for outcome in written:
            if outcome.error is not None:
                return outcome, None
        return self._timed(lambda: self._host_part(edge, version, ranks))

    def read_weights(self, edge: str, version: int, *parts: Bytes) -> Outcome:
        """Take a version: out of this host's buffer, or, if `parts` are given, out of what the hosts exported."""

        def read() -> None:
            if not parts:
                self._role.read_weights(self._manifests[edge], self._buffers[edge], version)
                return
            whole = LocalBuffer(len(parts[0]))
            with whole.writing(version) as data:
                np.copyto(data, reduce(np.bitwise_or, parts))  # each byte is written on one host, or equal on several
            self._role.read_weights(self._manifests[edge], whole, version)

        return self._timed(read)[0]

    def keep_weights(self, edge: str, version: int, file: Path, *parts: Bytes) -> Outcome:
        """Write a version to a checkpoint's file: out of this host's buffer, or out of what the hosts exported."""

        def keep() -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            if parts:
                reduce(np.bitwise_or, parts).tofile(file)
                return
            with self._buffers[edge].reading(version) as data:
                data.tofile(file)

        return self._timed(keep)[0]

    def put_weights(self, edge: str, version: int, file: Path, writers: int, share: bool) -> tuple[Outcome, Any]:
        """Have a version of a checkpoint again, as if all `writers` had written it: in this host's buffer, and if
        `share` as an object for other hosts."""

        def put() -> Bytes | None:
            kept = np.fromfile(file, dtype=np.uint8)
            for writer in range(writers):
                with self._buffers[edge].writing(version, writer) as data:
                    if writer == 0:
                        np.copyto(data, kept)
            return kept if share else None

        return self._timed(put)

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        for buffer in self._buffers.values():
            buffer.close()

    @property
    def _role(self) -> RoleWorker:
        assert self._worker is not None, "the rank has not started"
        return self._worker

    def _host_part(self, edge: str, version: int, ranks: Sequence[int]) -> Bytes:
        with self._buffers[edge].reading(version, writers=ranks) as data:
            return data.copy()

    def _rows_of(self, work: Callable[[], Result]) -> tuple[Outcome, Batch | None]:
        outcome, result = self._timed(work)
        if result is None or result.batch is None:
            return (outcome if result is None else replace(outcome, metrics=result.metrics)), None
        part = part_of(result.batch, None, result.dropped)
        return replace(outcome, metrics=result.metrics, part=part), result.batch

    def _valued(self, work: Callable[[], Any]) -> Outcome:
        outcome, value = self._timed(work)
        return replace(outcome, value=value)

    def _timed(self, work: Callable[[], Any]) -> tuple[Outcome, Any]:
        started = time.monotonic()
        try:
            value, error = work(), None
        except Exception as failure:
            value, error = None, _portable(failure, self._rank)
        return Outcome(started, time.monotonic() - started, error=error), value


def _sources(slots: Sequence[Slot], batches: Sequence[Batch]) -> list[Source]:
    return [Source(s.slot, s.field, tuple(batches[i] for i in s.batches), s.by_prompt) for s in slots]


class Clerk:
    """Reads a few rows for the driver, which never unpacks a batch itself."""

    def peek(self, batch: Batch, fields: Sequence[str], ids: Sequence[int]) -> Batch:
        return rows_with(batch, fields, ids)

    def close(self) -> None:
        return


def _portable(error: Exception, rank: int) -> Exception:
    """The exception with `rank`, `host` and `where`, or, if it cannot be pickled, its words in a RuntimeError. One that
    another actor has raised has them."""
    if hasattr(error, "where"):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    where = f"raised in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.__cause__ = error.__context__ = None
    for name, value in (("rank", rank), ("host", socket.gethostname()), ("where", where)):
        try:
            setattr(error, name, value)
        except AttributeError:
            continue
    return error
