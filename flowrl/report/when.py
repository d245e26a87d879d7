"""WHEN: one step of the steady state, a bar for each role under its pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.plan.plan import StagePlan, TimelineSpan
from flowrl.program.program import MOVES, SESSION, Instruction, InstructionKind
from flowrl.report.numbers import count, percent, seconds
from flowrl.report.page import joined, shorten

_NARROWEST_BAR = 16
_WIDEST_BAR = 60
_SLIGHT = 0.01
_SHORT = 0.02
"""Share of the step below which a role of the host gets no bar."""
_LEGEND = ("█ works", "▌ works less than half of the time", "▒ moves weights or state")
"""Of `_block`."""
_LABELS = {
    InstructionKind.LOAD: "load",
    InstructionKind.OFFLOAD: "offload",
    InstructionKind.WAKE_WEIGHTS: "wake weights",
    InstructionKind.WAKE_CACHE: "wake cache",
    InstructionKind.SEND_WEIGHTS: "send",
    InstructionKind.RECEIVE_WEIGHTS: "receive",
    InstructionKind.SAVE: "save",
}


@dataclass(frozen=True, slots=True)
class _Row:
    role: str
    spans: tuple[tuple[TimelineSpan, Instruction], ...]

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span, _ in self.spans)


def when(stage: StagePlan, width: int, *, legend: bool = False) -> list[str]:
    """Bars on one scale, 0 to the step's seconds; what goes on in the next step comes in again on the left. `legend`:
    what the marks mean, below the scale."""
    step = stage.estimate.step_seconds
    if step <= 0:
        return []
    names = max(len(role.name) for role in stage.graph.roles)
    room = min(max((width - names - 3) // 2, _NARROWEST_BAR), _WIDEST_BAR)
    lines: list[str] = []
    for pool in stage.pools:
        rows = _rows(stage, pool.name)
        if not rows:
            continue
        lines.append(f"{pool.name}  busy {percent(stage.estimate.busy.get(pool.name, 0.0))}")
        short = [row for row in rows if not pool.devices and row.seconds < _SHORT * step]
        for row in rows:
            lines += [] if row in short else _drawn(row, step, names, room, width)
        lines += joined([_named(row) for row in short], width, "  ", first="  ") if short else []
    scale = f"0 {'─' * (room - len(seconds(step)) - 3)} {seconds(step)}"
    lines.append(" " * (names + 3) + scale)
    lines += joined(_LEGEND, width, "  ", first="  ") if legend else []
    return [*lines, *_bound(stage, width), *_seldom(stage, width)]


def _rows(stage: StagePlan, pool: str) -> list[_Row]:
    """Roles of the pool in the order in which they start."""
    instructions = {i.id: i for i in stage.programs.instructions}
    found: dict[str, list[tuple[TimelineSpan, Instruction]]] = defaultdict(list)
    for span in stage.estimate.timeline:
        instruction = instructions[span.instruction]
        if instruction.pool == pool and span.seconds > 0:
            found[instruction.role].append((span, instruction))
    return [_Row(role, tuple(spans)) for role, spans in found.items()]


def _drawn(row: _Row, step: float, names: int, room: int, width: int) -> list[str]:
    head = f"  {row.role:<{names}} "
    text = joined(_durations(row), width - len(head) - room - 2, separator=" · ")
    bar = "".join(_block(row, step, room, cell) for cell in range(room))
    blank = " " * (len(head) + room + 2)
    return [shorten(f"{head}{bar}  {text[0]}", width), *(shorten(blank + line, width) for line in text[1:])]


def _block(row: _Row, step: float, room: int, cell: int) -> str:
    """█ works half of the cell's time or more, ▌ less, ▒ mostly moves weights or state."""
    start, stop = cell * step / room, (cell + 1) * step / room
    works = moves = 0.0
    for span, instruction in row.spans:
        covered = _overlap(span, start, stop) + _overlap(span, start + step, stop + step)
        if instruction.kind is InstructionKind.RUN or instruction.kind in SESSION:
            works += covered
        else:
            moves += covered
    if works == moves == 0:
        return " "
    if moves > works:
        return "▒"
    return "█" if works >= (stop - start) / 2 else "▌"


def _overlap(span: TimelineSpan, start: float, stop: float) -> float:
    return max(0.0, min(span.start_seconds + span.seconds, stop) - max(span.start_seconds, start))


def _durations(row: _Row) -> list[str]:
    """`generate 20.0 s`, `4 × update 2.10 s`; the longest first."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for span, instruction in row.spans:
        grouped[_label(instruction)].append(span.seconds)
    ordered = sorted(grouped.items(), key=lambda item: -sum(item[1]))
    return [_times(label, values) for label, values in ordered]


def _named(row: _Row) -> str:
    """`reward.score 400 ms`: for roles without a bar."""
    return ", ".join(f"{_long_label(instruction)} {seconds(span.seconds)}" for span, instruction in row.spans)


def times(values: Sequence[float]) -> str:
    """`2.10 s`, `4 × 2.10 s`, `4 × 2.10 s to 2.30 s`."""
    if len(values) == 1:
        return seconds(values[0])
    low, high = seconds(min(values)), seconds(max(values))
    return f"{count(len(values))} × {low if low == high else f'{low} to {high}'}"


def _times(label: str, values: Sequence[float]) -> str:
    """`4 × update 2.10 s`."""
    number, by, each = times(values).rpartition("× ")
    return f"{number}{by}{label} {each}"


def _label(instruction: Instruction) -> str:
    """What the role does; a data set, whose op has the role's own name, is read."""
    if instruction.op is None:
        return _LABELS[instruction.kind]
    if instruction.kind in SESSION:
        return instruction.kind.value
    return instruction.op.removeprefix(f"{instruction.role}.") if instruction.op != instruction.role else "read"


def _bound(stage: StagePlan, width: int) -> list[str]:
    title, names = _binding(stage)
    if not names:
        return []
    return joined([*(f"{name} ▶" for name in names[:-1]), names[-1]], width, "  ", " ", title)


def bound_by(stage: StagePlan) -> str:
    """`bound by critic.values ▶ critic.update`; empty where nothing takes time."""
    title, names = _binding(stage)
    return title + " ▶ ".join(names) if names else ""


def _binding(stage: StagePlan) -> tuple[str, list[str]]:
    """The circle that bounds the step, without what takes under one percent of it: how it is called, and its ops."""
    instructions = {i.id: i for i in stage.programs.instructions}
    least = _SLIGHT * stage.estimate.step_seconds
    working = {span.instruction for span in stage.estimate.timeline if span.seconds >= least}
    heavy = [instructions[id] for id in stage.estimate.critical if id in working]
    heavy = [i for i in heavy if i.kind not in MOVES]
    pools = {instruction.pool for instruction in heavy}
    title = f"bound by pool {pools.pop()}: " if len(pools) == 1 else "bound by "
    return title, list(dict.fromkeys(_long_label(instruction) for instruction in heavy))


def _long_label(instruction: Instruction) -> str:
    return instruction.op or f"{_LABELS[instruction.kind]} {instruction.role}"


def _seldom(stage: StagePlan, width: int) -> list[str]:
    """What validation and checkpoints add to the steps in which they work; the last step's checkpoint goes without."""
    parts = [
        f"{line.what} every {count(int(line.inputs['every_steps']))} steps adds {_added(line.value)}"
        for line in stage.estimate.lines
        if line.what in ("validation", "checkpoint") and line.inputs.get("every_steps", 0) < stage.run.steps
    ]
    return joined(parts, width) if parts else []


def _added(value: float) -> str:
    return seconds(value) if value > 1e-6 else "no time"
