"""The backend of environment roles: episodes of many turns, in slots beside the generators. Runs in the host pool.

`reset` gives each sample its first message. A step is played with the generators of its interaction (conversation.py):
`enter` begins the episodes of these samples, `tell` takes what agents said, `heard` gives what they hear next, of
whatever environments have answered by then, and `leave` what each agent has earned. At most `parallel` environments are
alive; further episodes wait, and are reset once more when their time comes. Seeds: of the prompt for the state that its
samples begin in, of the sample for what happens on the way.

A step may be played again: episodes that were begun before are given up, and what they begin from is known until the
next reset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray, Ragged
from flowrl.backends.contract import Call, Metrics, RankSetup, Result
from flowrl.backends.envs.episode import Episode, columns_of
from flowrl.backends.envs.protocol import Seen, Start
from flowrl.backends.envs.slots import Slots
from flowrl.backends.envs.turns import Heard, Left, Next, Said
from flowrl.backends.seeds import sample_seed
from flowrl.backends.user_code import UserCodeError
from flowrl.backends.user_process.process import printed_note
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op
from flowrl.graph.params import EnvParams

ABORT, DROP = "abort", "drop"
_SEED_BITS = 31
"""What every library takes for a seed."""


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
        self._played: set[int] = set()
        """Keys of episodes that were played to their ends."""
        self._first: dict[int, Seen] = {}
        """Of episodes that are alive and have not begun."""
        self._waiting: deque[int] = deque()
        self._episodes: dict[int, Episode] = {}
        self._alive: set[int] = set()
        """Of the episodes those that have begun and are not over."""
        self._said: dict[int, str] = {}
        """What environments are to answer, by episode."""
        self._next: Next = {}
        self._agents: tuple[str, ...] = ()
        self._op: Op | None = None

    def call(self, call: Call, batch: Batch) -> Result:
        """reset: prompt rows → the first message of each of their samples. Where one fails and the run goes on, its
        whole group is left out."""
        if call.op.method != "reset":
            raise InternalError(f"`{call.op.id}` is played with its generators")
        self._give_up()
        for key in self._played:
            self._starts.pop(key, None)
        self._played.clear()
        label = self._labels.index(call.op.label or "")
        self._put_away([key for key in self._first if key % len(self._labels) == label])  # of a reset before this one
        starts = self._starts_of(call, batch)
        room = self._most - len(self._first)
        messages: dict[int, object] = {}
        for place in range(0, len(starts), max(1, room)):
            some = starts[place : place + max(1, room)]
            self._slots.start(some)
            while self._slots.busy:
                for key, seen in self._slots.answers(wait=True):
                    if isinstance(seen, UserCodeError):
                        self._require(seen, key // len(self._labels), "at the reset")
                        continue
                    messages[key] = seen.observation
                    self._first[key] = seen
            if len(starts) > room:
                self._put_away([begin.id for begin in some])
        lost = {self._sample(begin) >> SAMPLE_ID_BITS for begin in starts if begin.id not in messages}
        stay = [begin for begin in starts if self._sample(begin) >> SAMPLE_ID_BITS not in lost]
        self._put_away([begin.id for begin in starts if self._sample(begin) >> SAMPLE_ID_BITS in lost])
        self._starts |= {begin.id: begin for begin in stay}
        ids = np.asarray([self._sample(begin) for begin in stay], dtype=np.int64)
        columns = {"prompt": tuple(messages[begin.id] for begin in stay)}
        return Result(Batch(ids, ids >> SAMPLE_ID_BITS, columns), {})

    def enter(self, call: Call, ids: IntArray, agents: Sequence[str]) -> None:
        """Begin the episodes of these samples, which may have been begun before."""
        self._give_up()
        self._op, self._agents = call.op, tuple(agents)
        self._episodes = {id: Episode(id, self._agents, self._params.max_turns) for id in ids.tolist()}
        self._waiting = deque(ids.tolist())
        for id in ids.tolist():
            key = self._key(call.op, id)
            if key not in self._starts:  # nothing was reset: the first message is the prompt of generate
                self._starts[key] = Start(key, id >> SAMPLE_ID_BITS, _luck(call, id), {})
        self._fill()

    def tell(self, said: Mapping[str, Sequence[Said]]) -> None:
        """What agents said."""
        for each in (each for agent in self._agents for each in said.get(agent, ())):
            if each.text is None:
                self._episodes[each.id].stop()
                self._over(each.id)
                continue
            self._said[each.id] = each.text
            self._slots.step(self._mine(each.id), each.text)
        self._fill()

    def heard(self, *, wait: bool) -> Next:
        """What is to be answered next, of what environments have said since, in the order of ids; `wait`: something at
        least, if anything is to come of what they are at."""
        while True:
            for key, seen in self._slots.answers(wait=wait and not self._next):
                self._took(self._episodes[key // len(self._labels)], seen)
            self._fill()
            if self._next or not wait or not self._slots.busy:
                break
        following, self._next = self._next, {}
        return {agent: sorted(heard, key=lambda each: each.id) for agent, heard in following.items()}

    @property
    def busy(self) -> bool:
        """Whether environments are at work, or have answered what nobody has heard yet."""
        return self._slots.busy or bool(self._next)

    def leave(self) -> Left:
        """What every agent has of the episodes, which are all over and forgotten here."""
        episodes, self._episodes = list(self._episodes.values()), {}
        dropped = {e.id >> SAMPLE_ID_BITS for e in episodes if e.failed and self._setup.role.on_error == DROP}
        stay = [e for e in episodes if e.id >> SAMPLE_ID_BITS not in dropped]
        self._played |= {self._mine(episode.id) for episode in episodes}
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

    def _give_up(self) -> None:
        """Of a step that was not played to its end: forget what is under way."""
        for id in list(self._alive):
            self._over(id)
        self._waiting.clear()
        self._said, self._next = {}, {}

    def _over(self, id: int) -> None:
        self._alive.discard(id)
        self._slots.end([self._mine(id)])

    def _fill(self) -> None:
        """Let episodes begin while there is room for them."""
        while self._waiting and (room := self._most - len(self._alive)) > 0:
            ids = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            self._alive.update(ids)
            self._slots.start([self._starts[key] for id in ids if (key := self._mine(id)) not in self._first])
            for id in ids:
                if (seen := self._first.pop(self._mine(id), None)) is not None:
                    self._took(self._episodes[id], seen)

    def _took(self, episode: Episode, answer: Seen | UserCodeError) -> None:
        """What came of a reset or of a turn."""
        first, text = episode.seen is None, self._said.pop(episode.id, "")
        try:
            seen = _good(answer)
            agent = episode.begin(seen) if first else episode.take(text, seen)
        except UserCodeError as error:
            self._require(error, episode.id, "at the reset" if first else f"in turn {len(episode.lines) + 1}")
            episode.stop(failed=True)
            agent = None
        if agent is None or episode.seen is None:
            self._over(episode.id)
            return
        heard = None if first and not self._resets else episode.seen.observation
        self._next.setdefault(agent, []).append(Heard(episode.id, heard, first=first))

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
