"""Every number and decision of a plan under a key of its own.

step, run, samples, …               figures of a step
D3                                  a decision
POOL                                its phases; POOL.PHASE: its lines; POOL.PHASE.WHAT: a line of memory
NODE/DEVICE                         the phases of a device
ROLE.OP                             seconds of an op, or of another instruction by its id; ROLE.OP.WHAT: a line of it
A => B                              a weights edge: what moves it, and the memory of its steps

With several stages each key has `STAGE/` before it. Takes a Plan, gives entries; knows nothing of how they are asked
for or shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowrl.graph.graph import EdgeKind
from flowrl.plan.plan import Decision, LedgerLine, Memory, Plan, StagePlan, Work
from flowrl.program.program import InstructionKind

ALONE = ("step", "samples", "tokens", "run", "checkpoint", "validation", "price")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`path` is the key in parts; `lines` are the siblings that an input may stand for, itself among them."""

    path: tuple[str, ...]
    stage: StagePlan
    prefix: str
    line: LedgerLine | None = None
    memory: Memory | None = None
    work: Work | None = None
    decision: Decision | None = None
    below: tuple[str, ...] = ()
    """Keys of the entries below one that is no line."""
    siblings: tuple[Entry, ...] = ()

    @property
    def key(self) -> str:
        return self.prefix + ".".join(self.path)


Book = dict[str, Entry]


def book_of(plan: Plan) -> Book:
    """The entries of a plan by key, in the order in which a plan is read: figures, decisions, time, memory."""
    several = len(plan.stages) > 1
    entries = [entry for stage in plan.stages for entry in _entries(stage, f"{stage.name}/" if several else "")]
    return {entry.key: entry for entry in entries}


def _entries(stage: StagePlan, prefix: str) -> Iterator[Entry]:
    yield from _figures(stage, prefix)
    for decision in stage.decisions:
        yield Entry(path=(decision.id,), stage=stage, prefix=prefix, decision=decision)
    times = list(_times(stage, prefix))
    memory = list(_memory(stage, prefix))
    yield from times
    yield from memory
    yield from _edges(stage, prefix, [*times, *memory])


def _figures(stage: StagePlan, prefix: str) -> Iterator[Entry]:
    lines = stage.estimate.lines
    names = Counter(line.what for line in lines)
    made: list[Entry] = []
    for line in lines:
        every = line.inputs.get("every_steps")
        path = (line.what, f"every {every}") if names[line.what] > 1 and every is not None else (line.what,)
        path = (line.what, line.role) if names[line.what] > 1 and every is None and line.role else path
        made.append(Entry(path=path, stage=stage, prefix=prefix, line=line))
    yield from with_siblings(made)


def with_siblings(entries: Sequence[Entry]) -> Iterator[Entry]:
    for entry in entries:
        yield Entry(path=entry.path, stage=entry.stage, prefix=entry.prefix, line=entry.line, siblings=tuple(entries))


def short_id(instruction: str) -> str:
    """`run actor_train.update 2/4` → `actor_train.update 2/4`; other instructions keep their id."""
    return instruction.removeprefix("run ")


def ops_run(stage: StagePlan) -> dict[str, str | None]:
    """The op of each instruction that runs one; the parts of a session, which differ, go by their ids."""
    return {i.id: i.op for i in stage.programs.instructions if i.kind is InstructionKind.RUN}


def _times(stage: StagePlan, prefix: str) -> Iterator[Entry]:
    """One entry for each distinct instruction, named by its op where it runs one."""
    ops = ops_run(stage)
    taken: set[str] = set()
    for work in stage.estimate.work:
        for id in work.instructions:
            name = ops.get(id) or short_id(id)
            if name in taken:
                continue
            taken.add(name)
            top = Entry(path=(name,), stage=stage, prefix=prefix, work=work)
            lines = list(_lines(top, work.lines))
            yield _above(top, lines)
            yield from with_siblings(lines)


def _lines(top: Entry, lines: Sequence[LedgerLine]) -> Iterator[Entry]:
    """Lines of one name are told apart by their roles."""
    names = Counter(line.what for line in lines)
    both = Counter((line.what, line.role) for line in lines)
    seen: Counter[tuple[str, str | None]] = Counter()
    for line in lines:
        own = (line.what,) if names[line.what] == 1 or line.role is None else (line.role, line.what)
        seen[line.what, line.role] += 1
        if both[line.what, line.role] > 1:
            own = (*own[:-1], f"{own[-1]} {seen[line.what, line.role]}")
        yield Entry(path=(*top.path, *own), stage=top.stage, prefix=top.prefix, line=line)


def _above(top: Entry, lines: Sequence[Entry]) -> Entry:
    return Entry(
        path=top.path,
        stage=top.stage,
        prefix=top.prefix,
        memory=top.memory,
        work=top.work,
        below=tuple(entry.key for entry in lines),
    )


def _memory(stage: StagePlan, prefix: str) -> Iterator[Entry]:
    """Pools, their phases and the lines of each; a device type of a pool that differs from others has its own."""
    phases = Counter((memory.pool, memory.phase) for memory in stage.memory)
    pools: dict[str, list[str]] = {}
    devices: dict[str, list[str]] = {}
    found: list[Entry] = []
    for memory in stage.memory:
        several = phases[memory.pool, memory.phase] > 1
        pool = f"{memory.pool} [{memory.device}]" if several else memory.pool
        top = Entry(path=(pool, memory.phase), stage=stage, prefix=prefix, memory=memory)
        lines = list(_lines(top, memory.lines))
        found.append(_above(top, lines))
        found.extend(with_siblings(lines))
        pools.setdefault(memory.pool, []).append(top.key)
        for device in _devices(memory, stage):
            devices.setdefault(device, []).append(top.key)
    for name, keys in [*pools.items(), *devices.items()]:
        yield Entry(path=(name,), stage=stage, prefix=prefix, below=tuple(keys))
    yield from found


def _devices(memory: Memory, stage: StagePlan) -> Sequence[str]:
    """The devices that `memory` is of: one, or a range of those of its pool."""
    first, dots, last = memory.device.partition(" .. ")
    if not dots:
        return [first]
    own = next((pool.devices for pool in stage.pools if pool.name == memory.pool), ())
    if first not in own or last not in own:
        return [first, last]
    return own[own.index(first) : own.index(last) + 1]


def _edges(stage: StagePlan, prefix: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    for edge in stage.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            name = f"{edge.source} => {edge.target}"
            below = [entry.key for entry in entries if entry.line is None and _is_of(entry, name)]
            yield Entry(path=(name,), stage=stage, prefix=prefix, below=tuple(below))


def _is_of(entry: Entry, edge: str) -> bool:
    return (entry.memory is not None or entry.work is not None) and entry.path[-1].endswith(f" {edge}")
