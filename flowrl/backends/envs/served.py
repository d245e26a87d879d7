"""What the process of user code does for environments: makes the room, lets episodes be played in it.

The messages travel as those of functions do (backends/user_process/messages.py).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowrl.backends.envs.names import maker_of
from flowrl.backends.envs.protocol import Seen, Start
from flowrl.backends.envs.room import Room
from flowrl.backends.user_code import UserCodeError
from flowrl.backends.user_process.messages import Loaded, Played, Raised, Refused, Reply
from flowrl.diag.diagnostic import FlowError
from flowrl.diag.span import Span


class Furnish(msgspec.Struct, frozen=True):
    """Find the environment. It is made when the first episode begins."""

    name: str
    folder: Path
    span: Span | None
    args: dict[str, object]


class Begin(msgspec.Struct, frozen=True):
    """Begin an episode."""

    start: Start


class Turn(msgspec.Struct, frozen=True):
    """Take a turn of one."""

    id: int
    action: str


class Over(msgspec.Struct, frozen=True):
    """Its environment may play another one."""

    id: int


Message = Furnish | Begin | Turn | Over

_rooms: list[Room] = []


def answer(message: Message) -> Reply:
    """The reply to one message; the first is Furnish."""
    try:
        if isinstance(message, Furnish):
            _rooms.append(Room(maker_of(message.name, message.folder, message.span), message.args))
            return Loaded()
        return Played(play(_rooms[-1], message))
    except FlowError as error:
        return Refused(error.diagnostics)
    except UserCodeError as error:
        return Raised(error.told)


def play(room: Room, message: Begin | Turn | Over) -> Seen | None:
    """What was seen, or None where nothing is told."""
    if isinstance(message, Begin):
        return room.start(message.start)
    if isinstance(message, Turn):
        return room.step(message.id, message.action)
    room.end(message.id)
    return None
