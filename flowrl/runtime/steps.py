"""The step book: completions of one step → its report, which is what every log of the run is written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.graph.graph import Graph, Kind
from flowrl.runtime.draws import Fates
from flowrl.runtime.launchers.contract import Completion
from flowrl.runtime.ledger import LedgerEntry, entries
from flowrl.runtime.metrics import merge, named, values
from flowrl.runtime.samples import Line, SampleLog, single_reward
from flowrl.runtime.state import Trained


@dataclass(frozen=True, slots=True)
class StepReport:
    """One whole step. `metrics` are numbers by name; `seconds` passed since the step before was whole."""

    stage: str
    step: int
    epilogue: bool
    seconds: float
    metrics: dict[str, float]
    tokens: int
    """Tokens of the samples that the step made; where it makes none, of those it trained on, if its trainer says."""
    samples: int
    """Samples that the step trained on."""
    ledger: tuple[LedgerEntry, ...]
    sample_lines: tuple[Line, ...]
    lost: int = 0
    """Ranks that were lost and made anew since the step before was whole."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class StepBook:
    """Gathers by step, since steps may overlap."""

    def __init__(self, stage: str, graph: Graph, steps: int, samples: SampleLog) -> None:
        self._stage = stage
        self._graph = graph
        self._steps = steps
        self._samples = samples
        self._completions: dict[int, list[dict[str, tuple[float, float]]]] = {}
        self._trained: dict[int, list[Trained]] = {}
        self._tokens: dict[int, int] = {}
        self._trained_tokens: dict[int, int] = {}
        self._dropped: dict[int, int] = {}
        """Prompts that had become too old."""

    def see(self, completion: Completion, trained: Trained | None) -> None:
        """Take in a completion without error."""
        firing = completion.work.firing
        if firing.instruction.op is None:
            return
        op = self._graph.op(firing.instruction.op)
        self._samples.see(completion)
        self._completions.setdefault(firing.step, []).append(named(completion.metrics, op.role, op.label))
        if trained is not None:
            self._trained.setdefault(firing.step, []).append(trained)
            tokens = int(completion.metrics.get("tokens", (0.0, 0.0))[0])
            self._trained_tokens[firing.step] = self._trained_tokens.get(firing.step, 0) + tokens
        self._dropped[firing.step] = self._dropped.get(firing.step, 0) + sum(len(p.dropped) for p in completion.parts)
        if op.label is None and self._graph.role(op.role).kind is Kind.GENERATOR:
            made = sum(int(p.token_lengths.sum()) for p in completion.parts if p.token_lengths is not None)
            self._tokens[firing.step] = self._tokens.get(firing.step, 0) + made

    def report(self, step: int, seconds: float, fates: Sequence[Fates] = ()) -> StepReport:
        """The step is whole: everything known about it, which is forgotten here."""
        trained = self._trained.pop(step, [])
        merged = merge(self._completions.pop(step, []))
        dropped = self._dropped.pop(step, 0)
        made, taken = self._tokens.pop(step, 0), self._trained_tokens.pop(step, 0)
        return StepReport(
            stage=self._stage,
            step=step,
            epilogue=step > self._steps,
            seconds=seconds,
            metrics=values(merged)
            | lags_of(trained)
            | refill_of(fates)
            | ({"stale_prompts": float(dropped)} if dropped else {}),
            tokens=made or taken,
            samples=len({i for rows in trained for i in rows.ids.tolist()}),
            ledger=entries(self._stage, step, trained, fates),
            sample_lines=tuple(
                {"stage": self._stage, "step": step, **single_reward(line)} for line in self._samples.take(step)
            ),
        )


def refill_of(fates: Sequence[Fates]) -> dict[str, float]:
    """`refill_rounds`: how often the step has drawn prompts; `refill_drawn`: how many; `refill_kept`: the share of them
    that filters have left, surplus among them. Nothing without refill."""
    refilled = [each for each in fates if each.rounds is not None]
    drawn = sum(len(each.drawn) for each in refilled)
    if not drawn:
        return {}
    rounds = max(each.rounds or 0 for each in refilled)
    kept = sum(len(each.kept) for each in refilled) / drawn
    return {"refill_rounds": float(rounds), "refill_drawn": float(drawn), "refill_kept": kept}


def lags_of(trained: Sequence[Trained]) -> dict[str, float]:
    """`lag` and `lag_max`: mean and most of how many published versions old the oldest tokens of the samples trained on
    were; `tokens_at_lag_K`: the share of their tokens that were written K versions ago. Nothing where the answers are
    the data set's."""
    ages = [rows.version - rows.versions.oldest for rows in trained if rows.versions is not None]
    count = sum(len(each) for each in ages)
    if not count:
        return {}
    found = {"lag": sum(float(each.sum()) for each in ages) / count}
    found["lag_max"] = float(max(each.max(initial=0) for each in ages))
    made = next(rows for rows in trained if rows.versions is not None)
    whole = sum(made.by_version.values())
    shares = {made.version - version: tokens / whole for version, tokens in made.by_version.items()}
    return found | {f"tokens_at_lag_{lag}": share for lag, share in sorted(shares.items())}
