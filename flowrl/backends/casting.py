"""Many float32 arrays written as bfloat16 elsewhere in memory, about as fast as bytes are copied there.

torch's own copy reads one stream of memory, with no word ahead of what it will read, and gets half of what one core
can read. casting.c does better, with the same results. It is compiled with the C compiler of the machine when it is
first wanted, in a folder that is gone at once; where there is none, torch copies. Must not know what the arrays are.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("casting.c")
COMPILE_SECONDS = 60.0
SHARE = 2**22
"""Numbers that a thread takes at a time: a millisecond's work, so that a thread whose core is busy holds up little."""

Pair = tuple[Tensor, Tensor]
"""Where to, and what from: both contiguous, of one length; bfloat16 and float32 on the CPU can be cast here."""
Addresses = npt.NDArray[np.uint64]


def castable(to: Tensor, source: Tensor) -> bool:
    """Whether `cast` takes them."""
    return (
        (to.dtype, source.dtype) == (torch.bfloat16, torch.float32)
        and to.device.type == source.device.type == "cpu"
        and to.is_contiguous()
        and source.is_contiguous()
    )


def cast(pairs: Sequence[Pair], threads: int) -> None:
    """Write every array as bfloat16, rounded to the nearest even: what `to.copy_(source)` writes."""
    if native() is None:
        for to, source in pairs:
            to.copy_(source)
        return
    shares = _shares(_pieces(pairs))
    if threads < 2 or len(shares) < 2:
        for share in shares:
            _run(share)
        return
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of Python's lock
        list(pool.map(_run, shares))


@functools.cache
def native() -> Callable[..., None] | None:
    """The compiled function, or None where it cannot be had."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="flowrl-casting-") as folder:
        made = Path(folder) / "casting.so"
        command = [compiler, "-O3", "-shared", "-fPIC", str(SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
            found = ctypes.CDLL(str(made)).flowrl_cast
        except (OSError, subprocess.SubprocessError):
            return None
    found.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    found.restype = None
    return found


def _pieces(pairs: Sequence[Pair]) -> Addresses:
    """uint64 [3, pieces]: addresses to, addresses from, and numbers, at most `SHARE` of each."""
    found: list[tuple[int, int, int]] = []
    for to, source in pairs:
        count, place, other = source.numel(), to.data_ptr(), source.data_ptr()
        for start in range(0, count, SHARE):
            found.append((place + 2 * start, other + 4 * start, min(count - start, SHARE)))
    return np.asarray(found, dtype=np.uint64).reshape(-1, 3).T


def _shares(pieces: Addresses) -> list[Addresses]:
    """Pieces in order, cut into runs of about `SHARE` numbers each."""
    ends = np.cumsum(pieces[2], dtype=np.int64)
    borders = np.searchsorted(ends, np.arange(SHARE, int(ends[-1]) if len(ends) else 0, SHARE))
    return [np.ascontiguousarray(part) for part in np.split(pieces, borders, axis=1) if part.shape[1]]


def _run(share: Addresses) -> None:
    function = native()
    assert function is not None
    to, source, counts = share
    function(share.shape[1], to.ctypes.data, source.ctypes.data, counts.ctypes.data)
