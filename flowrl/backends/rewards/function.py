"""The reward backend `function`: a user's function on lists of columns. Runs in the host pool, without torch.

The function is called with one list for each slot it reads and with the role's `args`; it returns one finite number for
each row, or a mapping with such a list under `rewards`. It runs in a process of its own (user_process), so that one
that hangs, crashes or takes all memory ends that process and not the run. What goes wrong is told by function, row and
the exception's last line; `on_error` says what then: `abort` ends the run, `default` scores 0, `drop` takes the whole
group away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.rewards.places import Floats, Places, parameters_of
from flowrl.backends.rewards.settled import ABORT, row_name, settled
from flowrl.backends.user_code import Fault, UserCodeError
from flowrl.backends.user_process.here import Here
from flowrl.backends.user_process.messages import Scored
from flowrl.backends.user_process.process import UserProcess, printed_note
from flowrl.backends.user_process.start import packed, started
from flowrl.diag.diagnostic import Diagnostic, FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Op
from flowrl.graph.params import ScoreParams
from flowrl.graph.types import Unit

STARTS = 10
"""Times that a function may end its process in one call of the op before the rows not tried are given up: so many find
one row of 1,024 that it ends with."""


class FunctionReward:
    """One rank; it keeps the processes of its functions."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._functions: dict[str, UserProcess | Here] = {}
        try:
            for op in setup.ops:  # a function that is not there shall be told before the first step
                if isinstance(op.params, ScoreParams) and op.params.function is not None:
                    self._function(op.params.function, _place(op))
        except BaseException:
            self.close()
            raise

    def call(self, call: Call, batch: Batch) -> Result:
        """score: any columns → `rewards` float32 [rows], or for each token or turn of a row. compare: the same, the
        function called once for each group."""
        if call.op.method not in ("score", "compare"):
            raise InternalError(f"a reward function has no op {call.op.id}")
        before, unit = self._restarts(), next((f.unit for f in call.op.outputs if f.name == "rewards"), Unit.SAMPLE)
        groups = _groups(batch) if call.op.method == "compare" else [np.arange(len(batch))]
        rewards, lists = np.full(len(batch), np.nan, dtype=np.float32), dict[int, Floats]()
        places = None if unit is Unit.SAMPLE else Places.of(batch, unit)
        for rows in groups:
            rewards[rows] = self.scores(call, batch.select(rows), lists, places)
        restarts = self._restarts() - before
        more = {"restarts": (float(restarts), 1.0)} if restarts else None
        made = settled(batch, rewards, self._setup.role.on_error, more)
        return made if places is None else _spread(made, places, lists)

    def scores(
        self, call: Call, batch: Batch, lists: dict[int, Floats] | None = None, places: Places | None = None
    ) -> Floats:
        """What the op's function gives each row, NaN where it gives none. With `on_error: abort` that raises
        FlowError. `places`: it gives several numbers a row, which are put into `lists` by the row's id; the row's own
        is their sum."""
        params = call.op.params
        if not isinstance(params, ScoreParams) or params.function is None:
            raise InternalError(f"`{call.op.id}` has no function")
        span, aborts = _place(call.op), self._setup.role.on_error == ABORT
        scorer = _Scorer(params, self._function(params.function, span), span, first_only=aborts)
        if places is not None:
            scorer.ragged, scorer.lists = places, {} if lists is None else lists
            names = parameters_of(params.function, self._setup.folder)
            batch = batch if names is None else batch.only(names)
        rewards, fault = scorer.score(batch)
        if fault is not None and aborts:
            raise FlowError(fault)
        return rewards

    def _restarts(self) -> int:
        return sum(function.restarts for function in self._functions.values())

    def close(self) -> None:
        functions, self._functions = self._functions, {}
        for function in functions.values():
            function.close()

    def _function(self, name: str, span: Span | None) -> UserProcess | Here:
        if name not in self._functions:
            self._functions[name] = started(self._setup, name, span)
        return self._functions[name]


def _spread(made: Result, places: Places, lists: Mapping[int, Floats]) -> Result:
    """The rewards of each row's places; 0 in all of a row that has none and stays."""
    batch = made.batch
    assert batch is not None
    rows = [lists[id] if id in lists else places.zeros(id) for id in batch.ids.tolist()]
    return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": Ragged.of(rows, np.float32)}), made.metrics)


def _groups(batch: Batch) -> list[npt.NDArray[np.int64]]:
    """Places of the rows of each prompt, in the order in which prompts come."""
    return [np.flatnonzero(batch.prompt_ids == prompt) for prompt in dict.fromkeys(batch.prompt_ids.tolist())]


def _place(op: Op) -> Span | None:
    """Where the flow names the function; else the op."""
    return op.spans.get("function", op.span)


Rewards = tuple[npt.NDArray[np.float32], Diagnostic | None]
"""Of each row, NaN where there is none, and what went wrong first."""


class _Scorer:
    """One call of the op on one batch. `first_only`: no row is tried after one that failed."""

    def __init__(
        self, params: ScoreParams, function: UserProcess | Here, span: Span | None, *, first_only: bool
    ) -> None:
        self._params = params
        self._function = function
        self._span = span
        self._name = f"{params.function}"
        self._first_only = first_only
        self._starts = STARTS
        self.ragged: Places | None = None
        self.lists: dict[int, Floats] = {}

    def score(self, batch: Batch) -> Rewards:
        if not len(batch) or self._starts < 1:
            return _none(batch), None
        try:
            return self._check(batch, self._run(batch))
        except UserCodeError as error:
            self._starts -= error.fault is not Fault.RAISED
            if len(batch) == 1 or error.fault is Fault.SLOW or self._starts < 1:
                return _none(batch), self._fault(error, batch)
            return self._row_by_row(batch, error) if error.fault is Fault.RAISED else self._by_halves(batch)

    def _run(self, batch: Batch) -> Scored:
        columns = packed(batch)
        ragged, seconds = self.ragged is not None, self._params.timeout_seconds
        return self._function.call(seconds, len(batch), columns, self._params.args, ragged=ragged)

    def _row_by_row(self, batch: Batch, error: UserCodeError) -> Rewards:
        """The function raised on all rows together: find the rows that it raises on alone."""
        rewards = _none(batch)
        fault: Diagnostic | None = None
        for row in range(len(batch)):
            rewards[row : row + 1], wrong = self.score(batch.select([row]))
            fault = fault or wrong
            if fault is not None and self._first_only:
                break
        return (rewards, fault) if fault else (_none(batch), self._fault(error, batch))

    def _by_halves(self, batch: Batch) -> Rewards:
        """The function ended its process: again with either half. Where both go well it was no row that did it."""
        middle = len(batch) // 2
        rewards, fault = self.score(batch.select(range(middle)))
        if fault is not None and self._first_only:
            return _none(batch), fault
        others, wrong = self.score(batch.select(range(middle, len(batch))))
        return np.concatenate([rewards, others]), fault or wrong

    def _check(self, batch: Batch, scored: Scored) -> Rewards:
        if scored.miscounted is not None:
            facts = {"function": self._name, "found": scored.miscounted, "rows": len(batch)}
            return _none(batch), diagnose("FR0823", self._span, **facts)
        if self.ragged is not None and scored.lengths is not None:
            return self._check_lists(batch, scored, self.ragged)
        rewards = np.frombuffer(scored.scores, dtype=np.float64).astype(np.float32)
        if scored.odd is None:
            return rewards, None
        row, found = scored.odd
        return rewards, diagnose("FR0824", self._span, function=self._name, found=found, row=row_name(batch, row))

    def _check_lists(self, batch: Batch, scored: Scored, places: Places) -> Rewards:
        """As `_check`, of several numbers a row."""
        flat = np.frombuffer(scored.scores, dtype=np.float64).astype(np.float32)
        ends = np.cumsum(np.frombuffer(scored.lengths or b"", dtype=np.int64))[:-1]
        rewards, odd = np.full(len(batch), np.nan, dtype=np.float32), scored.odd
        for row, numbers in enumerate(np.split(flat, ends) if len(batch) else []):
            id = int(batch.ids[row])
            fitting = numbers if np.isnan(numbers).any() else places.fit(id, numbers)
            if fitting is None:
                odd = odd if odd is not None and odd[0] < row else (row, f"{len(numbers)} values for {places.told(id)}")
            elif not np.isnan(fitting).any():
                self.lists[id], rewards[row] = fitting, fitting.sum()
        if odd is None:
            return rewards, None
        row = row_name(batch, odd[0])
        return rewards, diagnose("FR0824", self._span, function=self._name, found=odd[1], row=row)

    def _fault(self, error: UserCodeError, batch: Batch) -> Diagnostic:
        notes, name = printed_note(error.printed), self._name
        if error.fault is Fault.SLOW:
            seconds = f"{self._params.timeout_seconds:g}"
            return diagnose("FR0825", self._span, notes=notes, function=name, rows=len(batch), seconds=seconds)
        code = {Fault.RAISED: "FR0822", Fault.ENDED: "FR0826", Fault.MEMORY: "FR0827"}[error.fault]
        row = row_name(batch, 0) if len(batch) == 1 else f"{len(batch)} rows together"
        if len(batch) > 1 and error.fault is Fault.RAISED:
            row += ", and on none of them alone"
        return diagnose(code, self._span, notes=notes, function=name, error=error.told, row=row)


def _none(batch: Batch) -> npt.NDArray[np.float32]:
    return np.full(len(batch), np.nan, dtype=np.float32)
