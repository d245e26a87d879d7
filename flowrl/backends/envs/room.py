"""A room: environments of one kind in one process, each playing one episode at a time.

Takes what episodes begin from and what was said, gives what was seen. An environment whose episode is over is reset for
the next one: those that hold a device or a connection are made once. It stands in the process of user code, or here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flowrl.backends.envs.protocol import Seen, Start, start, step
from flowrl.backends.user_code import UserCodeError, told


class Room:
    def __init__(self, make: Callable[..., Any], args: Mapping[str, object]) -> None:
        self._make, self._args = make, dict(args)
        self._playing: dict[int, Any] = {}
        self._free: list[Any] = []

    def start(self, begin: Start) -> Seen:
        """Begin an episode. Raises UserCodeError for what the environment raises."""
        env = self._playing.get(begin.id) or self._one()
        self._playing[begin.id] = env
        return self._tried(lambda: start(env, begin), begin.id)

    def step(self, id: int, action: str) -> Seen:
        """One turn of an episode."""
        return self._tried(lambda: step(self._playing[id], action), id)

    def end(self, id: int) -> None:
        """An episode is over, or given up."""
        env = self._playing.pop(id, None)
        if env is not None:
            self._free.append(env)

    def close(self) -> None:
        envs = [*self._playing.values(), *self._free]
        self._playing, self._free = {}, []
        for env in envs:
            with suppress(Exception):
                env.close() if hasattr(env, "close") else None

    def _one(self) -> Any:
        if self._free:
            return self._free.pop()
        try:
            return self._make(**self._args)
        except (Exception, SystemExit) as error:
            raise UserCodeError(told(error)) from error

    def _tried(self, ask: Callable[[], Seen], id: int) -> Seen:
        try:
            return ask()
        except UserCodeError:
            self._playing.pop(id, None)
            raise
        except (Exception, SystemExit) as error:  # not what interrupts the run
            self._playing.pop(id, None)  # whatever state it is in, it is not played again
            raise UserCodeError(told(error)) from error
