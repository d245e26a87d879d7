"""The backend of environment roles: episodes of many turns, in slots beside the generators. Runs in the host pool.

`reset` gives each sample its first message. A step is played with the generators of its interaction (runtime/
interact.py): `enter` begins the episodes of these samples, `answer` takes what agents said and gives what they hear
next, `leave` gives what each agent has earned. At most `parallel` environments are alive; further episodes wait, and
are reset once more when their time comes. Seeds: of the prompt for the state that its samples begin in, of the sample
for what happens on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray, Ragged
from flowrl.backends.contract import Call, Metrics, RankSetup, Result
from flowrl.backends.envs.episode import Episode, columns_of
from flowrl.backends.envs.protocol import Seen, Start
from flowrl.backends.envs.slots import Slots
from flowrl.backends.envs.turns import Heard, Left, Said
from flowrl.backends.seeds import sample_seed
from flowrl.backends.user_code import UserCodeError
from flowrl.backends.user_process.process import printed_note
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op
from flowrl.graph.params import EnvParams

ABORT, DROP = "abort", "drop"
_SEED_BITS = 31
"""What every library takes for a seed."""

Next = dict[str, list[Heard]]
"""What agents shall answer, by agent."""


class Environment:
    """One rank. Raises FlowError FR0820, FR0821, FR0828, FR0860 or FR0861 if its environment cannot be had."""

    def __init__(self, setup: RankSetup) -> None:
        found = next(((op, op.params) for op in setup.ops if isinstance(op.params, EnvParams)), None)
        if found is None:
            raise InternalError(f"`{setup.role.name}` has no op of an environment")
        op, self._params = found
        self._setup, self._span = setup, op.spans.get("env", op.span)
        self._slots = Slots(self._params, setup.folder, self._span, setup.world_size)
        self._labels = sorted({op.label or "" for op in setup.ops})
        """Of its calls: each has samples of its own, whose ids may be another call's, too (`_key`)."""
        self._starts: dict[int, Start] = {}
        """By key, as `_first`."""
        self._first: dict[int, Seen] = {}
        """Of episodes that are alive and have not begun."""
        self._waiting: deque[int] = deque()
        self._episodes: dict[int, Episode] = {}
        self._agents: tuple[str, ...] = ()
        self._op: Op | None = None

    def call(self, call: Call, batch: Batch) -> Result:
        """reset: prompt rows → the first message of each of their samples. Where one fails and the run goes on, its
        whole group is left out."""
        if call.op.method != "reset":
            raise InternalError(f"`{call.op.id}` is played with its generators")
        starts = self._starts_of(call, batch)
        room = self._most - len(self._first)
        messages: dict[int, object] = {}
        for place in range(0, len(starts), max(1, room)):
            some = starts[place : place + max(1, room)]
            for begin, seen in zip(some, self._slots.start(some), strict=True):
                if isinstance(seen, UserCodeError):
                    self._require(seen, self._sample(begin), "at the reset")
                    continue
                messages[begin.id] = seen.observation
                self._first[begin.id] = seen
            if len(starts) > room:
                self._put_away([begin.id for begin in some])
        lost = {self._sample(begin) >> SAMPLE_ID_BITS for begin in starts if begin.id not in messages}
        stay = [begin for begin in starts if self._sample(begin) >> SAMPLE_ID_BITS not in lost]
        self._put_away([begin.id for begin in starts if self._sample(begin) >> SAMPLE_ID_BITS in lost])
        self._starts |= {begin.id: begin for begin in stay}
        ids = np.asarray([self._sample(begin) for begin in stay], dtype=np.int64)
        columns = {"prompt": tuple(messages[begin.id] for begin in stay)}
        return Result(Batch(ids, ids >> SAMPLE_ID_BITS, columns), {})

    def enter(self, call: Call, ids: IntArray, agents: Sequence[str]) -> Next:
        """Begin the episodes of these samples; gives what is to be answered first."""
        self._op, self._agents = call.op, tuple(agents)
        self._episodes = {id: Episode(id, self._agents, self._params.max_turns) for id in ids.tolist()}
        self._waiting = deque(ids.tolist())
        for id in ids.tolist():
            key = self._key(call.op, id)
            if key not in self._starts:  # nothing was reset: the first message is the prompt of generate
                self._starts[key] = Start(key, id >> SAMPLE_ID_BITS, _luck(call, id), {})
        return self._fill({})

    def answer(self, said: Mapping[str, Sequence[Said]]) -> Next:
        """What agents said; gives what is to be answered next, which may be nothing while others still speak."""
        following: Next = {}
        turns: list[tuple[int, str]] = []
        for each in (each for agent in self._agents for each in said.get(agent, ())):
            if each.text is not None:
                turns.append((each.id, each.text))
                continue
            self._episodes[each.id].stop()
            self._slots.end([self._mine(each.id)])
        answers = self._slots.step([(self._mine(id), text) for id, text in turns])
        for (id, text), seen in zip(turns, answers, strict=True):
            self._took(self._episodes[id], text, seen, following)
        return self._fill(following)

    def leave(self) -> Left:
        """What every agent has of the episodes, which are all over and forgotten here."""
        episodes, self._episodes = list(self._episodes.values()), {}
        dropped = {e.id >> SAMPLE_ID_BITS for e in episodes if e.failed and self._setup.role.on_error == DROP}
        stay = [e for e in episodes if e.id >> SAMPLE_ID_BITS not in dropped]
        for episode in episodes:
            self._starts.pop(self._mine(episode.id), None)
        rows = {agent: columns_of(stay, agent) for agent in self._agents}
        return Left(rows, self._metrics(episodes, rows))

    def close(self) -> None:
        self._slots.close()

    def _key(self, op: Op, id: int) -> int:
        """Of an episode: no other call's has it."""
        return id * len(self._labels) + self._labels.index(op.label or "")

    def _mine(self, id: int) -> int:
        """The key of a sample of the call that is played."""
        assert self._op is not None
        return self._key(self._op, id)

    def _sample(self, begin: Start) -> int:
        return begin.id // len(self._labels)

    @property
    def _most(self) -> int:
        """Environments that may be alive."""
        return self._params.parallel or 2**SAMPLE_ID_BITS

    @property
    def _resets(self) -> bool:
        """Whether the call that is played has a reset, which gives the first message."""
        label = None if self._op is None else self._op.label
        return any(op.method == "reset" and op.label == label for op in self._setup.ops)

    def _starts_of(self, call: Call, batch: Batch) -> list[Start]:
        seeds = np.asarray(batch.columns.get("prompt_id", batch.prompt_ids))
        names = [name for name in batch.columns if name != "prompt_id"]
        starts: list[Start] = []
        for row, prompt in enumerate(batch.prompt_ids.tolist()):
            kept = {name: _value(batch.columns[name], row) for name in names}
            ids = range(prompt << SAMPLE_ID_BITS, (prompt << SAMPLE_ID_BITS) + call.samples_per_prompt)
            starts += [Start(self._key(call.op, id), int(seeds[row]), _luck(call, id), kept) for id in ids]
        return starts

    def _put_away(self, ids: Sequence[int]) -> None:
        """Episodes that begin again when there is room for them, or never."""
        for id in ids:
            self._first.pop(id, None)
        self._slots.end(ids)

    def _fill(self, following: Next) -> Next:
        """Let episodes begin while there is room for them."""
        while self._waiting and (room := self._most - self._alive()) > 0:
            ids = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            anew = [key for id in ids if (key := self._mine(id)) not in self._first]
            seen = dict(zip(anew, self._slots.start([self._starts[key] for key in anew]), strict=True))
            for id in ids:
                key = self._mine(id)
                self._began(self._episodes[id], seen.get(key) or self._first.pop(key), following)
        return following

    def _alive(self) -> int:
        return sum(1 for episode in self._episodes.values() if episode.seen is not None and not episode.over)

    def _began(self, episode: Episode, seen: Seen | UserCodeError, following: Next) -> None:
        agent = self._tried(lambda: episode.begin(_good(seen)), episode, "at the reset")
        if agent is not None and episode.seen is not None:
            heard = episode.seen.observation if self._resets else None
            following.setdefault(agent, []).append(Heard(episode.id, heard, first=True))

    def _took(self, episode: Episode, text: str, seen: Seen | UserCodeError, following: Next) -> None:
        doing = f"in turn {len(episode.lines) + 1}"
        agent = self._tried(lambda: episode.take(text, _good(seen)), episode, doing)
        if agent is not None and episode.seen is not None:
            following.setdefault(agent, []).append(Heard(episode.id, episode.seen.observation))
        elif not episode.failed:
            self._slots.end([self._mine(episode.id)])

    def _tried(self, ask: Callable[[], str | None], episode: Episode, doing: str) -> str | None:
        """Whose turn is next; None: the episode is over."""
        try:
            return ask()
        except UserCodeError as error:
            self._require(error, episode.id, doing)
            episode.stop(failed=True)
            self._slots.end([self._mine(episode.id)])
            return None

    def _require(self, error: UserCodeError, id: int, doing: str) -> None:
        """FR0862, unless the role says that the run goes on."""
        if self._setup.role.on_error != ABORT:
            return
        prompt = id >> SAMPLE_ID_BITS
        row = f"sample {id - (prompt << SAMPLE_ID_BITS)} of prompt {prompt}"
        notes, env = printed_note(error.printed), self._params.env
        raise FlowError(diagnose("FR0862", self._span, notes=notes, env=env, error=error.told, row=row, doing=doing))

    def _metrics(self, episodes: Sequence[Episode], rows: Mapping[str, Batch]) -> Metrics:
        count = len(episodes)
        if not count:
            return {}
        rewards = np.concatenate([batch.array("rewards") for batch in rows.values()])
        whole = float(count)
        found = {
            "success": (sum(each.won for each in episodes) / whole, whole),
            "turns": (sum(len(each.lines) for each in episodes) / whole, whole),
            "cut": (sum(each.cut for each in episodes) / whole, whole),
        }
        if len(rewards):
            found["rewards"] = (float(rewards.mean()), float(len(rewards)))
        if self._setup.role.on_error != ABORT:
            found["failed"] = (sum(each.failed for each in episodes) / whole, whole)
        if self._slots.restarts:
            found["restarts"] = (float(self._slots.restarts), 1.0)
        return found


def _good(seen: Seen | UserCodeError) -> Seen:
    if isinstance(seen, UserCodeError):
        raise seen
    return seen


def _luck(call: Call, id: int) -> int:
    return sample_seed(call.seed, f"{call.op.role}.luck", id) >> (63 - _SEED_BITS)


def _value(column: Column, row: int) -> Any:
    value = column.rows()[row] if isinstance(column, Ragged) else column[row]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
