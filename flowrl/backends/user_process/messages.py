"""What a rank and the process of its user function say to each other: frames on a socket, length first.

A rank's messages are pickled: they are its own bytes, and columns may hold any Python value. What comes back is
msgpack of the structs below and nothing else, so that no user's code chooses what the rank makes of it. Columns travel
as flat bytes and become Python lists in the process that needs them.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from pathlib import Path
from typing import Any

import msgspec

from flowrl.backends.envs.protocol import Seen
from flowrl.diag.diagnostic import Diagnostic
from flowrl.diag.span import Span

HEADER = struct.Struct("<Q")
MOST_BYTES = 1 << 31
"""Of one frame: a length beyond it is not one of ours."""


class Load(msgspec.Struct, frozen=True):
    """Find the function."""

    name: str
    folder: Path
    span: Span | None


class Ask(msgspec.Struct, frozen=True):
    """Call the function that was loaded."""

    name: str
    rows: int
    columns: dict[str, Packed]
    args: dict[str, object]
    outputs: tuple[str, ...] = ()
    """Columns that it returns; none: a reward, one number a row."""
    ragged: bool = False
    """Whether the reward of a row is a list of numbers: process rewards."""


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The function is there."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It is not."""

    diagnostics: tuple[Diagnostic, ...]


class Scored(msgspec.Struct, frozen=True, tag="scored"):
    """What the function returned, as far as it is rewards."""

    scores: bytes = b""
    """float64 of each row, NaN where it gave no finite number; nothing if the count is wrong."""
    lengths: bytes | None = None
    """int64 of each row, where a row has several: how many of the scores are its own."""
    odd: tuple[int, str] | None = None
    """The first row without a number, and what it gave in its place."""
    miscounted: str | None = None
    """What was returned in place of one value a row."""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """What a function of columns returned."""

    columns: dict[str, list[Any]] = {}
    """One plain value for each row."""
    problem: str | None = None
    """What is wrong with what it returned."""


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The function raised: the exception in one line."""

    told: str


class Debugging(msgspec.Struct, frozen=True, tag="debugging"):
    """The function has met a breakpoint: its clock stands still until it is done."""


class Played(msgspec.Struct, frozen=True, tag="played"):
    """What an environment answered (backends/envs/served.py)."""

    seen: Seen | None


Reply = Loaded | Refused | Scored | Called | Raised | Debugging | Played

_replies = msgspec.msgpack.Decoder(Reply)


class Packed(msgspec.Struct, frozen=True):
    """A column: flat bytes of one machine type, with the lengths of rows if they are lists; or the values as they
    are."""

    kind: str
    """Format character of memoryview.cast; empty: `values` holds the rows."""
    flat: bytes = b""
    lengths: bytes | None = None
    values: list[object] | None = None

    def rows(self) -> list[object]:
        """One Python value for each row; a token field gives a list of lists."""
        if self.values is not None:
            return self.values
        kind: Any = self.kind
        flat: list[object] = memoryview(self.flat).cast(kind).tolist() if self.flat else []
        if self.lengths is None:
            return flat
        rows: list[object] = []
        start = 0
        for length in array("q", self.lengths):
            rows.append(flat[start : start + length])
            start += length
        return rows


def frame(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


def of_rank(message: msgspec.Struct) -> bytes:
    """The frame of what a rank says: Load, Ask, or a message to environments."""
    return frame(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def from_rank(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - the rank that started this process wrote it


def of_function(reply: Reply) -> bytes:
    """The frame of what the function's process says."""
    return frame(msgspec.msgpack.encode(reply))


class Incoming:
    """Bytes of a socket → replies. Raises ValueError (msgspec's errors too) for what is no reply."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> Reply | None:
        if len(self._bytes) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise ValueError("no frame")
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        payload = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return _replies.decode(payload)
