"""Weight buffers: how a trainer's parameters reach other processes without a gather and without the controller.

A buffer holds a few slots, each large enough for all parameters in the layout of the trainer's manifest. Version v
lies in slot v % slots. Every rank of the trainer writes its own shards into the slot, every rank of the reader reads
the whole; the controller only names the buffer and the version. `SharedBuffer` is a memory mapping that stays open in
all processes of one host, `LocalBuffer` the same thing inside one process. This file knows nothing of models, engines
or Ray.

Protocol of a slot, so that no reader sees a half-written version: writer w locks its own byte of the file, notes the
version as begun, writes, notes it as done, and unlocks. A reader locks the bytes of all writers (shared), and accepts
the slot only if every writer has begun and done the version it wants, before and after reading. The locks are the
kernel's (fcntl), so a process that dies holds none; what it half wrote is begun and not done, hence never accepted.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.diag.diagnostic import Diagnostic, FlowError, InternalError, diagnose

PAGE_BYTES = 4096
MAGIC = 0x464C4F57524C0001
"""`FLOWRL` and the format's number."""
NAME_PREFIX = "flowrl-weights-"
HEADER_WORDS = 8
LOCK_POLL_SECONDS = 0.001
YOUNG_SECONDS = 60.0


class WeightBuffer(Protocol):
    """What launchers and workers use. `version` counts from 1; version 0 is in every model folder and never travels."""

    name: str
    nbytes: int

    def writing(self, version: int, writer: int = 0) -> AbstractContextManager[Bytes]:
        """Context in which trainer rank `writer` fills its part of the version's slot: uint8 [nbytes]."""
        ...

    def reading(self, version: int) -> AbstractContextManager[Bytes]:
        """Context in which the slot holds all of `version` and stays so: uint8 [nbytes], not to be written to."""
        ...

    def close(self) -> None: ...


def buffer_bytes(manifest: Sequence[TensorSpec]) -> int:
    """Bytes that the parameters take in the layout of `manifest`."""
    return max((spec.offset + spec.nbytes for spec in manifest), default=0)


class LocalBuffer:
    """A weight buffer inside one process: same interface, plain memory, no locks."""

    def __init__(self, nbytes: int, *, slots: int = 1, writers: int = 1) -> None:
        self.name = "local"
        self.nbytes = nbytes
        self._done = np.zeros((slots, writers), dtype=np.int64)
        self._slots: list[Bytes] = [np.zeros(nbytes, dtype=np.uint8) for _ in range(slots)]

    @contextmanager
    def writing(self, version: int, writer: int = 0) -> Iterator[Bytes]:
        slot = version % len(self._slots)
        self._done[slot, writer] = 0
        yield self._slots[slot]
        self._done[slot, writer] = version

    @contextmanager
    def reading(self, version: int) -> Iterator[Bytes]:
        slot = version % len(self._slots)
        late = [writer for writer, done in enumerate(self._done[slot]) if done != version]
        if late:
            raise FlowError(_not_done(late, version, int(self._done[slot, late[0]]), self.name))
        yield self._slots[slot]

    def close(self) -> None:
        self._slots = []


class SharedBuffer:
    """A weight buffer in /dev/shm, shared by the processes of one host. Made once, opened by name elsewhere.

    Give it one slot more than versions may wait in the edge's channel: a version is then never overwritten while it
    is read, and the locks only ever wait when something else is wrong.
    """

    def __init__(self, path: Path, *, owner: bool) -> None:
        self.name = str(path)
        self._owner = owner
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._file, fcntl.LOCK_SH)  # as long as somebody has it open: see _sweep
        self._map: mmap.mmap | None = mmap.mmap(self._file, 0)
        words = np.frombuffer(self._map, dtype=np.int64, count=HEADER_WORDS)
        if words[0] != MAGIC:
            raise InternalError(f"{path} is not a weight buffer of this version")
        self.nbytes, self.slots, self.writers = int(words[1]), int(words[2]), int(words[3])
        marks = np.frombuffer(self._map, dtype=np.int64, count=2 * self.slots * self.writers, offset=8 * HEADER_WORDS)
        self._begun, self._done = marks.reshape(2, self.slots, self.writers)

    @staticmethod
    def create(nbytes: int, *, slots: int = 2, writers: int = 1, folder: Path | None = None) -> SharedBuffer:
        """Make a buffer of `slots` × `nbytes`, its memory taken at once. The maker's `close` unlinks it; those whose
        makers were killed are unlinked here.

        Raises FlowError FR0950 if the folder (default /dev/shm) has no room.
        """
        folder = folder or _shared_folder()
        _sweep(folder)
        header = _pages(8 * (HEADER_WORDS + 2 * slots * writers))
        total = header + slots * _pages(nbytes)
        path = folder / f"{NAME_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        _require_room(folder, total)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, total)
            os.pwrite(file, np.asarray([MAGIC, nbytes, slots, writers], dtype=np.int64).tobytes(), 0)
        except OSError as error:
            os.unlink(path)
            raise FlowError(_no_room(folder, total)) from error
        finally:
            os.close(file)
        return SharedBuffer(path, owner=True)

    @staticmethod
    def open(name: str) -> SharedBuffer:
        """Map a buffer that another process of this host has made."""
        return SharedBuffer(Path(name), owner=False)

    @contextmanager
    def writing(self, version: int, writer: int = 0, timeout_seconds: float = 60.0) -> Iterator[Bytes]:
        """As WeightBuffer.writing. Raises FlowError FR0951 if a reader holds the slot for `timeout_seconds`.

        An exception inside leaves the version begun and not done: no reader will accept it.
        """
        self._require_open()
        slot = version % self.slots
        with self._locked(fcntl.LOCK_EX, slot * self.writers + writer, 1, version, timeout_seconds):
            self._done[slot, writer] = 0
            self._begun[slot, writer] = version
            yield self._slot(slot)
            self._done[slot, writer] = version

    @contextmanager
    def reading(
        self, version: int, timeout_seconds: float = 60.0, writers: Sequence[int] | None = None
    ) -> Iterator[Bytes]:
        """As WeightBuffer.reading; with `writers`, only theirs must be done (the others write on other hosts).

        Raises FlowError FR0951 if a writer holds the slot for `timeout_seconds`, FR0952 if one has not finished this
        version or has begun another one.
        """
        self._require_open()
        slot = version % self.slots
        with self._locked(fcntl.LOCK_SH, slot * self.writers, self.writers, version, timeout_seconds):
            self._require_done(slot, version, writers)
            yield self._slot(slot)
            self._require_done(slot, version, writers)

    def checksum(self, version: int) -> int:
        """CRC-32 of the slot's bytes, whatever their state: for tests."""
        return zlib.crc32(self._slot(version % self.slots).data)

    @property
    def path(self) -> str:
        """Where a process of this host may open the buffer as long as this one has it open, whatever became of its
        name."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def unlink(self) -> None:
        """Take the name away once every process has opened it: the memory then goes with the last of them, however
        they end."""
        Path(self.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap; the maker also unlinks. May be called twice. Views handed out before keep their memory alive."""
        if self._map is None:
            return
        if self._owner:
            self.unlink()
        self._begun = self._done = np.zeros((0, 0), dtype=np.int64)
        mapping, self._map = self._map, None
        with suppress(BufferError):  # a view outlives us; the map goes when the view does
            mapping.close()
        os.close(self._file)

    def _require_done(self, slot: int, version: int, writers: Sequence[int] | None) -> None:
        begun, done = self._begun[slot], self._done[slot]
        required = range(self.writers) if writers is None else writers
        late = [rank for rank in required if begun[rank] != version or done[rank] != version]
        if late:
            raise FlowError(_not_done(late, version, int(done[late[0]]), self.name))

    def _require_open(self) -> None:
        if self._map is None:
            raise InternalError(f"weight buffer {self.name} is closed")

    def _slot(self, slot: int) -> Bytes:
        self._require_open()
        assert self._map is not None
        start = _pages(8 * (HEADER_WORDS + 2 * self.slots * self.writers)) + slot * _pages(self.nbytes)
        return np.frombuffer(self._map, dtype=np.uint8, count=self.nbytes, offset=start)

    @contextmanager
    def _locked(self, kind: int, start: int, length: int, version: int, timeout_seconds: float) -> Iterator[None]:
        deadline = time.monotonic() + timeout_seconds
        while not self._try_lock(kind, start, length):
            if time.monotonic() > deadline:
                raise FlowError(diagnose("FR0951", version=version, seconds=f"{timeout_seconds:g}", buffer=self.name))
            time.sleep(LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, length, start)

    def _try_lock(self, kind: int, start: int, length: int) -> bool:
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, length, start)
        except (BlockingIOError, PermissionError):
            return False
        return True


def _not_done(late: Sequence[int], version: int, held: int, buffer: str) -> Diagnostic:
    ranks = ", ".join(str(rank) for rank in late)
    return diagnose("FR0952", version=version, ranks=ranks, held=held, buffer=buffer)


def _sweep(folder: Path) -> None:
    """Unlink buffers that nobody has open: their makers were killed. One that is being made is young."""
    for path in folder.glob(f"{NAME_PREFIX}*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(file).st_mtime > YOUNG_SECONDS:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(file)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _shared_folder() -> Path:
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


def _require_room(folder: Path, nbytes: int) -> None:
    disk = os.statvfs(folder)
    if nbytes > disk.f_bavail * disk.f_frsize:
        raise FlowError(_no_room(folder, nbytes))


def _no_room(folder: Path, nbytes: int) -> Diagnostic:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    return diagnose("FR0950", folder=folder, need_mib=f"{nbytes / 2**20:,.1f}", free_mib=f"{free / 2**20:,.1f}")
