"""Weight buffers: what is written is read, and a half-written version is never accepted."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.synchronize
import os
import time
from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.contract import TensorSpec
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.runtime.weights import NAME_PREFIX, YOUNG_SECONDS, LocalBuffer, SharedBuffer, buffer_bytes


def _code(error: pytest.ExceptionInfo[FlowError]) -> str:
    return error.value.diagnostics[0].code


def test_buffer_bytes_is_the_end_of_the_last_tensor() -> None:
    manifest = [
        TensorSpec(name="b", dtype="float32", shape=(4,), offset=64, nbytes=16),
        TensorSpec(name="a", dtype="float32", shape=(4,), offset=0, nbytes=16),
    ]
    assert buffer_bytes(manifest) == 80
    assert buffer_bytes([]) == 0


def test_two_writers_fill_one_version_and_every_opener_reads_it() -> None:
    made = SharedBuffer.create(10, slots=2, writers=2)
    opened = SharedBuffer.open(made.name)
    for version in (1, 2, 3):
        for writer, part in enumerate((slice(0, 4), slice(4, 10))):
            with opened.writing(version, writer) as data:
                data[part] = 10 * version + writer
        with made.reading(version) as data:
            assert data.tolist() == [10 * version] * 4 + [10 * version + 1] * 6
    assert made.checksum(3) == opened.checksum(3) != made.checksum(2)
    opened.close()
    made.close()


def test_two_slots_hold_two_versions() -> None:
    for buffer in (SharedBuffer.create(3, slots=2), LocalBuffer(3, slots=2)):
        for version in (4, 5):
            with buffer.writing(version) as data:
                data[:] = version
        with buffer.reading(4) as older, buffer.reading(5) as newer:
            assert older.tolist() == [4, 4, 4]
            assert newer.tolist() == [5, 5, 5]
        buffer.close()


def test_a_version_is_refused_unless_every_writer_has_done_it() -> None:
    for buffer in (SharedBuffer.create(3, writers=2), LocalBuffer(3, slots=2, writers=2)):
        with buffer.writing(2, 0) as data:
            data[:] = 1
        with pytest.raises(FlowError) as error, buffer.reading(2):
            pass
        assert _code(error) == "FR0952"
        assert "trainer rank 1" in str(error.value.diagnostics[0].notes)
        buffer.close()


def test_a_host_asks_only_for_the_writers_it_has() -> None:
    buffer = SharedBuffer.create(3, writers=3)
    with buffer.writing(1, 1) as data:
        data[1] = 5
    with buffer.reading(1, writers=[1]) as data:
        assert data.tolist() == [0, 5, 0]
    with pytest.raises(FlowError) as error, buffer.reading(1, writers=[1, 2]):
        pass
    assert _code(error) == "FR0952"
    buffer.close()


def test_an_exception_while_writing_leaves_the_version_undone() -> None:
    for buffer in (SharedBuffer.create(3), LocalBuffer(3, slots=2)):
        with buffer.writing(1) as data:
            data[:] = 1
        with pytest.raises(ValueError, match="could not broadcast"), buffer.writing(1) as data:
            data[:2] = [1, 2, 3]
        with pytest.raises(FlowError) as error, buffer.reading(1):
            pass
        assert _code(error) == "FR0952"
        buffer.close()


def test_a_version_overwritten_while_it_is_read_is_noticed() -> None:
    """Locks belong to processes, so within this one only the version words can tell."""
    buffer = SharedBuffer.create(3, slots=1)
    with buffer.writing(1):
        pass
    with pytest.raises(FlowError) as error, buffer.reading(1), buffer.writing(2):
        pass
    assert _code(error) == "FR0952"
    buffer.close()


def _write_many(name: str, versions: int, nbytes: int) -> None:
    buffer = SharedBuffer.open(name)
    for version in range(1, versions + 1):
        with buffer.writing(version) as data:
            for start in range(0, nbytes, nbytes // 8):  # in pieces, so that a torn read would be likely
                data[start : start + nbytes // 8] = version % 251
    buffer.close()


def test_a_reader_beside_a_writing_process_sees_whole_versions_only() -> None:
    versions, nbytes = 400, 1 << 16
    buffer = SharedBuffer.create(nbytes, slots=1)
    writer = multiprocessing.get_context("spawn").Process(target=_write_many, args=(buffer.name, versions, nbytes))
    writer.start()
    seen, last = 0, 0
    refused: set[str] = set()
    while last < versions and (writer.is_alive() or last == 0):
        try:
            held = max(1, int(buffer._done[0, 0]))
            with buffer.reading(held) as data:
                values = np.unique(data)
            assert values.tolist() == [held % 251]
            seen, last = seen + 1, held
        except FlowError as error:
            refused.add(error.diagnostics[0].code)
    writer.join(30)
    assert writer.exitcode == 0
    assert seen > 0
    assert refused <= {"FR0952"}
    buffer.close()


def _hold(name: str, ready: multiprocessing.synchronize.Event, leave: multiprocessing.synchronize.Event) -> None:
    buffer = SharedBuffer.open(name)
    with buffer.writing(2) as data:
        data[0] = 9
        ready.set()
        leave.wait(30)
        os._exit(1)


def test_a_lock_is_waited_for_and_a_dead_writer_holds_none() -> None:
    buffer = SharedBuffer.create(3, slots=1)
    spawn = multiprocessing.get_context("spawn")
    ready, leave = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=_hold, args=(buffer.name, ready, leave))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(FlowError) as error, buffer.reading(2, timeout_seconds=0.05):
        pass
    assert _code(error) == "FR0951"
    leave.set()
    holder.join(30)
    with pytest.raises(FlowError) as error, buffer.reading(2, timeout_seconds=0.05):
        pass
    assert _code(error) == "FR0952"
    with buffer.writing(2) as data:
        data[:] = 2
    with buffer.reading(2) as data:
        assert data.tolist() == [2, 2, 2]
    buffer.close()


def test_close_leaves_nothing_and_may_be_called_twice(tmp_path: Path) -> None:
    buffer = SharedBuffer.create(5, folder=tmp_path)
    assert [path.name.startswith(NAME_PREFIX) for path in tmp_path.iterdir()] == [True]
    with buffer.writing(1) as view:
        view[:] = 7
    buffer.close()
    buffer.close()
    assert list(tmp_path.iterdir()) == []
    assert view.tolist() == [7] * 5
    with pytest.raises(InternalError), buffer.writing(2):
        pass


def test_an_opened_buffer_outlives_its_name(tmp_path: Path) -> None:
    made = SharedBuffer.create(5, folder=tmp_path)
    opened = SharedBuffer.open(made.name)
    made.unlink()
    assert list(tmp_path.iterdir()) == []
    with made.writing(1) as data:
        data[:] = 3
    with opened.reading(1) as data:
        assert data.tolist() == [3] * 5
    opened.close()
    made.close()


def test_no_room_is_said_with_the_arithmetic(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as error:
        SharedBuffer.create(1 << 50, slots=2, folder=tmp_path)
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.code == "FR0950"
    assert "2,147,483,648.0 MiB" in str(diagnostic.why)
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_not_taken_for_a_buffer(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(4096))
    with pytest.raises(InternalError, match="not a weight buffer"):
        SharedBuffer.open(str(path))


def test_buffers_of_killed_makers_are_unlinked_and_no_others(tmp_path: Path) -> None:
    made, go_on = multiprocessing.Pipe()
    maker = multiprocessing.get_context("spawn").Process(target=_make_and_wait, args=(tmp_path, go_on))
    maker.start()
    orphan = Path(made.recv())
    living = SharedBuffer.create(4096, folder=tmp_path)
    assert orphan.exists()
    old = time.time() - 2 * YOUNG_SECONDS
    for path in (orphan, Path(living.name)):
        os.utime(path, (old, old))
    second = SharedBuffer.create(4096, folder=tmp_path)
    assert orphan.exists()  # its maker lives
    maker.kill()
    maker.join()
    third = SharedBuffer.create(4096, folder=tmp_path)
    assert sorted(map(str, tmp_path.iterdir())) == sorted(each.name for each in (living, second, third))
    for buffer in (living, second, third):
        buffer.close()
    assert not list(tmp_path.iterdir())


def _make_and_wait(folder: Path, told: multiprocessing.connection.Connection) -> None:
    told.send(SharedBuffer.create(4096, folder=folder).name)
    time.sleep(60)
