"""Environments in a process of their own: asked turn by turn, ended when a turn takes too long or holds too much.

Takes messages of `served.py`, gives what was seen or raises UserCodeError. One that has ended is started again by the
next message, with an empty room: `starts` tells.
"""

from __future__ import annotations

from flowrl.backends.envs.names import maker_of
from flowrl.backends.envs.protocol import Seen
from flowrl.backends.envs.room import Room
from flowrl.backends.envs.served import Begin, Furnish, Over, Turn, play
from flowrl.backends.user_code import Fault, UserCodeError
from flowrl.backends.user_process.messages import Played, Raised, of_rank
from flowrl.backends.user_process.process import STRANGE, Limits, UserProcess


class EnvProcess(UserProcess):
    """Raises FlowError FR0820, FR0821, FR0828, FR0860 or FR0861 if there is no such environment."""

    def __init__(self, furnish: Furnish, limits: Limits) -> None:
        super().__init__(furnish.name, furnish.folder, furnish.span, limits, furnish)

    def play(self, message: Begin | Turn | Over, timeout_seconds: float | None) -> Seen | None:
        """Raises UserCodeError: it raised, was not done in time, ended its process or held too much."""
        with self._lock:
            process = self._ready()
            reply = self._converse(process, of_rank(message), timeout_seconds)
            if isinstance(reply, Raised):
                raise UserCodeError(reply.told, printed=process.printed)
            if not isinstance(reply, Played):
                self._end()
                raise UserCodeError(STRANGE, Fault.ENDED, process.printed)
            return reply.seen

    def is_up(self) -> bool:
        """Whether its room is as the last message left it."""
        return self._process is not None and self._process.is_alive()


class EnvHere:
    """As EnvProcess, in this process: FlowRL's own, which neither hang nor end. No limit of time."""

    restarts = 0

    def __init__(self, furnish: Furnish) -> None:
        self._room = Room(maker_of(furnish.name, furnish.folder, furnish.span), furnish.args)

    def play(self, message: Begin | Turn | Over, timeout_seconds: float | None) -> Seen | None:
        return play(self._room, message)

    def close(self) -> None:
        self._room.close()

    def is_up(self) -> bool:
        return True
