"""One episode: whose turn it is, what was said and what it earned. Pure; takes what was seen, knows no process.

A turn's reward is what the environment gave for it, and what it gave the same agent for the turns of others until its
next one. An episode ends when the environment says so, when whoever is next has had `max_turns` turns, when what is
next to be heard leaves an agent no room, or when the environment fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, Ragged
from flowrl.backends.envs.protocol import Observation, Seen
from flowrl.backends.user_code import UserCodeError


@dataclass(slots=True)
class Line:
    """A turn that was taken."""

    agent: str
    heard: Observation | None
    text: str
    state_key: int
    """Of the state in which it was taken."""
    reward: float = 0.0
    done: bool = False


@dataclass(slots=True)
class Episode:
    id: int
    agents: Sequence[str]
    max_turns: int
    lines: list[Line] = field(default_factory=list[Line])
    seen: Seen | None = None
    """The newest."""
    over: bool = False
    cut: bool = False
    """Whether a limit ended it: of turns, of tokens, or the environment's own."""
    failed: bool = False
    success: bool | None = None
    _owed: dict[str, float] = field(default_factory=dict[str, float])

    def begin(self, seen: Seen) -> str:
        """Its first observation; gives whose turn it is."""
        self.seen = seen
        return self._next(seen)

    def take(self, text: str, seen: Seen) -> str | None:
        """A turn was taken: what came of it. Gives whose turn is next; None: it is over."""
        assert self.seen is not None
        agent = self._next(self.seen)
        line = Line(agent, self.seen.observation, text, self.seen.state_key)
        self.lines.append(line)
        self._earn(seen.rewards, agent)
        self.seen = seen
        self.success = seen.success if seen.success is not None else self.success
        if seen.done:
            self._end(done=seen.terminated)
            return None
        agent = self._next(seen)
        if sum(line.agent == agent for line in self.lines) >= self.max_turns:
            self._end(done=False)
            return None
        return agent

    def stop(self, *, failed: bool = False) -> None:
        """It ends here, without a turn."""
        self.failed = failed
        self._end(done=False)

    @property
    def won(self) -> bool:
        """What the environment calls a success; where it does not say, an end of its own with a reward above 0."""
        if self.success is not None:
            return self.success
        return not self.cut and not self.failed and bool(self.lines) and self.lines[-1].reward > 0

    def _end(self, *, done: bool) -> None:
        self.over, self.cut = True, not done and not self.failed
        for agent in self.agents:
            own = [line for line in self.lines if line.agent == agent]
            if own:
                own[-1].done = done

    def _next(self, seen: Seen) -> str:
        """Whose turn it is: as the environment says, else one after another."""
        if seen.agent is not None:
            if seen.agent not in self.agents:
                raise UserCodeError(f"`info` names the agent `{seen.agent}`, and there are {', '.join(self.agents)}")
            return seen.agent
        return self.agents[len(self.lines) % len(self.agents)]

    def _earn(self, rewards: dict[str, float], agent: str) -> None:
        for name, reward in rewards.items():
            earner = name or agent
            self._owed[earner] = self._owed.get(earner, 0.0) + reward
        for earner in list(self._owed):
            own = [line for line in self.lines if line.agent == earner]
            if own:
                own[-1].reward += self._owed.pop(earner)


def columns_of(episodes: Sequence[Episode], agent: str) -> Batch:
    """The fields of the environment's step as one agent has them: its own turns, the joint transcript. Rows in the
    order of ids. A turn field is Ragged with one value for each turn: for each run of true in the row's `loss_mask`."""
    rows = sorted(episodes, key=lambda episode: episode.id)
    own = [[line for line in episode.lines if line.agent == agent] for episode in rows]
    ids = np.asarray([episode.id for episode in rows], dtype=np.int64)
    rewards = [np.asarray([line.reward for line in lines]) for lines in own]
    columns: dict[str, Column] = {
        "turn_rewards": Ragged.of(rewards, np.float32),
        "done": Ragged.of([np.asarray([line.done for line in lines]) for lines in own], np.bool_),
        "state_key": Ragged.of([np.asarray([line.state_key for line in lines]) for lines in own], np.int64),
        "rewards": np.asarray([each.sum() for each in rewards], dtype=np.float32),
        "success": np.asarray([episode.won for episode in rows], dtype=np.bool_),
        "transcript": tuple([_told(line) for line in episode.lines] for episode in rows),
    }
    return Batch(ids, ids >> SAMPLE_ID_BITS, columns)


def _told(line: Line) -> dict[str, object]:
    heard = {} if line.heard is None else {"observation": line.heard}
    return {"agent": line.agent, **heard, "text": line.text, "reward": line.reward}
