"""Signs of life: every rank on Ray sends the driver a datagram a second, from a thread of its own.

Ray sees a process that is gone within milliseconds, and one that is stopped (SIGSTOP, a debugger, a host that swaps)
never. A rank that has been heard and is silent for `hung_seconds` counts as dead. One that works or waits still has a
pulse: what waits without end is told by the driver's rule of stalls. Where datagrams do not get through, nobody is ever
heard, and nobody is missed.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

BEAT_SECONDS = 1.0
HUNG_SECONDS = 60.0
AWAY_SECONDS = 10.0
"""A driver that has not listened for so long begins to count anew: what it missed says nothing of the ranks."""
_NUMBER = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Heart:
    """Where a rank sends its pulse, and what it sends."""

    port: int
    word: bytes

    def beat(self, host: str) -> None:
        """Begin to send, until the process ends."""
        threading.Thread(target=self._beat, args=(host,), daemon=True, name="flowrl pulse").start()

    def _beat(self, host: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while True:
                with suppress(OSError):
                    out.sendto(self.word, (host, self.port))
                time.sleep(BEAT_SECONDS)


class Pulses:
    """Listens. Ranks are known by numbers, each given once; times are of the caller's clock."""

    def __init__(self, hung_seconds: float = HUNG_SECONDS) -> None:
        self.hung_seconds = hung_seconds
        self._secret = secrets.token_bytes(8)
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._in.bind(("", 0))
        self._in.setblocking(False)
        self._made = 0
        self._heard: dict[int, float] = {}
        self._listened: float | None = None

    def heart(self) -> tuple[int, Heart]:
        """The number and the heart of a new rank."""
        self._made += 1
        return self._made, Heart(int(self._in.getsockname()[1]), self._secret + _NUMBER.pack(self._made))

    def silent(self, now: float) -> frozenset[int]:
        """Numbers that were heard once and have not been for `hung_seconds`."""
        heard = self._listen()
        self._heard |= dict.fromkeys(heard, now)
        if self._listened is not None and now - self._listened > AWAY_SECONDS:
            self._heard = dict.fromkeys(self._heard, now)
        self._listened = now
        return frozenset(number for number, at in self._heard.items() if now - at > self.hung_seconds)

    def forget(self, numbers: Iterable[int]) -> None:
        """These ranks are no more."""
        for number in numbers:
            self._heard.pop(number, None)

    def close(self) -> None:
        self._in.close()

    def _listen(self) -> set[int]:
        heard: set[int] = set()
        while True:
            try:
                word = self._in.recv(64)
            except OSError:  # nothing more to read
                return heard
            if word[: len(self._secret)] == self._secret and len(word) == len(self._secret) + _NUMBER.size:
                heard.add(int(_NUMBER.unpack(word[len(self._secret) :])[0]))
