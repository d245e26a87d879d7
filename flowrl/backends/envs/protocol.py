"""What an environment is asked and what it answers. The protocol is Gymnasium's, with text for actions.

    reset(*, seed, options) -> observation, info
    step(action: str) -> observation, reward, terminated, truncated, info

Takes an environment of anybody's, gives `Seen`: plain values that travel between processes. An observation is a text
(one message of the user) or a list of messages; anything else is written out by `str`. `info` may hold `agent` (whose
turn is next), `success`, `state_key` (what the state is known by; else the observation is) and `rewards` ({agent:
number} where a turn rewards others too). `reset` may as well name the columns that it wants in place of `options`, give
no `info`, and `step` may give one `done` in place of two. Knows no tokens, no batch and neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from flowrl.backends.user_code import UserCodeError

Observation = str | list[dict[str, str]]
SHOWN = 60
"""Most characters of a value that is shown."""


class Seen(msgspec.Struct, frozen=True):
    """What an environment answered."""

    observation: Observation
    rewards: dict[str, float] = {}
    """By agent; under the empty name that of the turn just taken."""
    terminated: bool = False
    truncated: bool = False
    """Ended by a limit of the environment's own."""
    agent: str | None = None
    """Whose turn is next; None: the environment does not say."""
    success: bool | None = None
    state_key: int = 0
    """Of the state that is now; equal states have equal keys. int64."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Start(msgspec.Struct, frozen=True):
    """What an episode begins from."""

    id: int
    """Of the sample."""
    seed: int
    """Of the prompt: its samples begin in one state."""
    luck: int
    """A seed of the sample's own, for what happens on the way: `options["sample_seed"]`."""
    row: dict[str, Any]
    """The prompt and the columns that its data set keeps."""


def start(env: Any, begin: Start) -> Seen:
    """Reset `env`. Raises UserCodeError for an answer of another form."""
    known = inspect.signature(env.reset).parameters
    options = {**begin.row, "sample_seed": begin.luck}
    if "options" in known or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        answer = env.reset(seed=begin.seed, options=options)
    else:
        wanted = {name: value for name, value in options.items() if name in known}
        answer = env.reset(**({"seed": begin.seed} if "seed" in known else {}), **wanted)
    observation, info = answer if _is_pair(answer) else (answer, {})
    return _seen(observation, {}, info, terminated=False, truncated=False)


def step(env: Any, action: str) -> Seen:
    """One turn. Raises UserCodeError for an answer of another form."""
    answer = env.step(action)
    if not isinstance(answer, tuple) or len(answer) not in (4, 5):
        raise UserCodeError(
            f"`step` returned {_named(answer)} in place of observation, reward, terminated, truncated, info"
        )
    observation, reward, terminated, *rest = answer
    truncated, info = rest if len(rest) == 2 else (False, rest[0])
    if not isinstance(info, Mapping):
        raise UserCodeError(f"`step` returned {_named(info)} in place of `info`, a mapping")
    rewards = {"": _number(reward, "reward")}
    others = info.get("rewards")
    if isinstance(others, Mapping):
        rewards = {str(name): _number(value, "reward") for name, value in others.items()} | rewards
    return _seen(observation, rewards, info, terminated=bool(terminated), truncated=bool(truncated))


def key_of(value: object) -> int:
    """An int64 that equal values share: an int of 63 bits as it is, of all else a hash of its text."""
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _seen(
    observation: object, rewards: dict[str, float], info: Mapping[str, Any], *, terminated: bool, truncated: bool
) -> Seen:
    said = _observation(observation)
    agent, success = info.get("agent"), info.get("success")
    return Seen(
        observation=said,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        agent=None if agent is None else str(agent),
        success=None if success is None else bool(success),
        state_key=key_of(info.get("state_key", said)),
    )


def _observation(value: object) -> Observation:
    if isinstance(value, str):
        return value
    if (
        isinstance(value, Sequence)
        and value
        and all(isinstance(each, Mapping) for each in cast("Sequence[Any]", value))
    ):
        return [_message(cast("Mapping[str, Any]", each)) for each in value]
    return str(value)


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
        raise UserCodeError(f"an observation holds {_named(dict(message))}, no message of `role` and `content` as text")
    return {"role": message["role"], "content": message["content"]}


def _number(value: Any, what: str) -> float:
    """A finite number, also as a numpy scalar."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserCodeError(f"`step` returned {_named(value)} as a {what}") from None
    if not math.isfinite(number):
        raise UserCodeError(f"`step` returned {number} as a {what}")
    return number


def _is_pair(answer: object) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)


def _named(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
