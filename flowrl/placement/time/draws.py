"""Random seconds of a firing: what response lengths and latencies make of the means that a plan is timed by.

Takes a program with its ledger lines; gives for each instruction whose time is random a Draw, which a simulation draws
from. Its mean is the duration of the plan, up to the rounding of averages inside a maximum.

What is random. Decoding ends with the longest of N responses, so its time is drawn by the longest: the chance that it
is still going after t tokens is 1 - (1 - s)^N, s the share of responses that are longer (the order statistic; David &
Nagaraja 2003, "Order Statistics", 2.1), and the others are as many at each moment as they are in the mean if the
longest is known. How many tokens they have spreads by v/√N, v the coefficient of variation of one response, and so does
the part of the seconds that a single response would not take. Engines that run full, or whose tails are carried over,
and the compute of forward passes and updates spread by that alone, each by dice of its own: that the same long
responses are decoded and then trained on is left out. Calls of a judge or a sandbox end with the longest of the calls
under way. Not random here: turns of an environment, weights, moves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, sqrt
from random import Random

from flowrl.graph.graph import Graph, Op
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.lengths import LengthTable, mean_and_p99
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.cost.rates import rate_inputs
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory.pool import limit_bytes
from flowrl.placement.request import PlacementRequest
from flowrl.placement.time.decode import Engine, drain, step_seconds
from flowrl.placement.time.generation import engine_of
from flowrl.placement.time.ops import calls_at_once
from flowrl.plan.plan import Decision, LedgerLine, Pool
from flowrl.program.program import Instruction, InstructionKind, Program

_LEAST_CHANCE = 1e-6
"""Of a longest response, below which it is left out."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Seconds of one firing: `fixed`, `bulk` with a relative standard deviation of `spread`, and `repeats` times one of
    `seconds`, drawn by `chances`, of which the share in `shared` spreads in the same way."""

    fixed: float
    bulk: float = 0.0
    spread: float = 0.0
    repeats: int = 1
    chances: tuple[float, ...] = ()
    """Cumulative."""
    seconds: tuple[float, ...] = ()
    shared: tuple[float, ...] = ()
    life: tuple[LengthTable, float] | None = None
    """Where unfinished responses go on in the next step: their lengths, and seconds of a token while they decode."""

    @property
    def mean(self) -> float:
        own = (chance - before for chance, before in zip(self.chances, (0.0, *self.chances), strict=False))
        return self.fixed + self.bulk + self.repeats * sum(c * s for c, s in zip(own, self.seconds, strict=True))

    def drawn(self, random: Random) -> float:
        """One firing's."""
        total = self.fixed
        if self.bulk:
            total += self.bulk * max(0.0, random.gauss(1.0, self.spread))
        for _ in range(self.repeats if self.seconds else 0):
            at = min(bisect_left(self.chances, random.random()), len(self.seconds) - 1)
            total += self.seconds[at] * max(0.0, random.gauss(1.0, self.spread * self.shared[at]))
        return max(0.0, total)


def draws_of(
    graph: Graph,
    pools: Sequence[Pool],
    program: Program,
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    lines: Mapping[str, Sequence[LedgerLine]],
    *,
    request: PlacementRequest | None = None,
    decisions: Sequence[Decision] = (),
) -> dict[str, Draw]:
    """Draws by instruction id. `lines`: what `duration_lines` gives. The members of an interaction, which take as long,
    have the same."""
    request = request or PlacementRequest()
    work = Workload(graph, shapes, request)
    placed = {
        each.role.name: each
        for pool in pools
        if pool.devices
        for each in placed_roles(graph, pool, shapes, cluster, request, decisions)
    }
    found: dict[str, Draw] = {}
    by_op: dict[str, Draw | None] = {}
    for instruction in program.instructions:
        if instruction.op is None or not lines[instruction.id]:
            continue
        if instruction.kind is InstructionKind.TAKE:
            taken = _taken(work, graph.op(instruction.op), instruction, lines[instruction.id], placed, pools, cluster)
            found |= {} if taken is None else {instruction.id: taken}
        if instruction.kind is not InstructionKind.RUN:
            continue
        if instruction.op not in by_op:
            by_op[instruction.op] = _draw(work, graph.op(instruction.op), lines[instruction.id], placed, pools, cluster)
        draw = by_op[instruction.op]
        if draw is not None:
            found[instruction.id] = draw
    return _together(found, program)


def _together(found: dict[str, Draw], program: Program) -> dict[str, Draw]:
    """Of an interaction, whose generators' times add up for all of its members, the draw of the first that has one."""
    for members in dict.fromkeys(program.together.values()):
        first = next((found[id] for id in members if id in found), None)
        if first is not None:
            found |= dict.fromkeys(members, first)
    return found


def _taken(
    work: Workload,
    op: Op,
    instruction: Instruction,
    lines: Sequence[LedgerLine],
    placed: Mapping[str, Placed],
    pools: Sequence[Pool],
    cluster: Cluster,
) -> Draw | None:
    """One part of a call that is handed on in parts. The last one waits for the longest response, so what is random of
    the whole call is there; the others end when so many are done, which spreads little."""
    decode = next((line for line in lines if line.what.startswith("decode")), None)
    is_last = instruction.firing + 1 == instruction.firings
    if decode is None or not (is_last or decode.what != "decode") or not decode.inputs.get("f"):
        return None
    draw = _draw(work, op, lines, placed, pools, cluster)
    if draw is None or decode.what != "decode":
        return draw
    before = decode.value / float(decode.inputs["f"]) - decode.value
    return replace(draw, fixed=draw.fixed - before)


def _draw(
    work: Workload,
    op: Op,
    lines: Sequence[LedgerLine],
    placed: Mapping[str, Placed],
    pools: Sequence[Pool],
    cluster: Cluster,
) -> Draw | None:
    whole = sum(line.value for line in lines)
    decode = next((line for line in lines if line.what.startswith("decode")), None)
    if decode is not None:
        here = placed[op.role]
        rest = whole - decode.value
        if decode.what != "decode":
            return _carried(work, here, op, rest, decode.value, _engine(work, here, op, pools, cluster))
        return _decoded(work, here, op, rest, _engine(work, here, op, pools, cluster))
    compute = next((line for line in lines if line.what == "compute"), None)
    if compute is not None:
        spread = _spread(work.lengths(op).responses, float(work.rows(op).count))
        return Draw(whole - compute.value, compute.value, spread) if spread > 0 else None
    waited = next((line for line in lines if line.what == "host work" and "z" in line.inputs), None)
    return None if waited is None else _called(work, op, whole - float(waited.inputs["z"]))


def _engine(work: Workload, placed: Placed, op: Op, pools: Sequence[Pool], cluster: Cluster) -> Engine:
    """As `OpTime` has it."""
    limit = limit_bytes(placed.pool, pools, cluster)
    tokens = engine_memory.cache_tokens(placed, work.lengths(op), limit)
    most = placed.role.engine.max_sequences or float("inf")
    if engine_memory.is_engine(placed):
        most = engine_memory.sequences_in_flight(placed)
    in_use = sum(len(pool.devices) for pool in pools)
    rates = rate_inputs(placed, "forward", cluster.name, in_use)
    return engine_of(placed, rates, most, tokens, work.lengths(op).responses.longest_of(work.rows(op).count))


def _decoded(work: Workload, placed: Placed, op: Op, rest: float, engine: Engine) -> Draw | None:
    """One firing of decoding until the last response is done."""
    lengths, everywhere = work.lengths(op), float(work.rows(op).count)
    table, prompt = lengths.responses, float(lengths.prompt_mean.value)
    rows = max(1.0, everywhere / placed.layout.dp)
    repeats = 1
    if rows > engine.most_sequences and not engine.leaves:
        repeats = ceil(rows / engine.most_sequences)
        rows, everywhere = rows / repeats, everywhere / repeats
    most = _at_once(engine, rows, prompt, table)
    draw = Draw(rest, repeats=repeats, spread=_spread(table, everywhere))
    if rows > most * 1.02 and engine.leaves:
        full, lives = drain(table, rows / most)
        age = table.weighted / 2
        bulk = full * step_seconds(placed.model, engine, most, prompt + age)

        def step(alive: float, t: float) -> float:
            return step_seconds(placed.model, engine, alive, prompt + min(age + t, table.most))

        own = by_longest(lives, table.width, everywhere * most / rows, most, step, leaves=True)
        return replace(draw, bulk=bulk, chances=own.chances, seconds=own.seconds, shared=own.shared)

    def stepped(alive: float, t: float) -> float:
        together = max(1.0, min(alive, engine.cache_tokens / (prompt + t)))
        return step_seconds(placed.model, engine, together, prompt + t) * (alive / together)

    own = by_longest(table.alive, table.width, everywhere, rows, stepped, leaves=engine.leaves or engine.shrinks)
    if len(own.seconds) < 2 and not draw.spread:
        return None
    return replace(draw, chances=own.chances, seconds=own.seconds, shared=own.shared)


def _carried(work: Workload, placed: Placed, op: Op, rest: float, bulk: float, engine: Engine) -> Draw:
    """One firing of an engine that never runs empty."""
    lengths, everywhere = work.lengths(op), float(work.rows(op).count)
    table, prompt = lengths.responses, float(lengths.prompt_mean.value)
    rows = max(1.0, everywhere / placed.layout.dp)
    together = _at_once(engine, rows, prompt, table)
    token = bulk * together / max(1e-9, rows * table.mean)
    return Draw(rest, bulk, _spread(table, everywhere), life=(table, token))


def _called(work: Workload, op: Op, rest: float) -> Draw | None:
    """Calls at once, until the longest of the last is back."""
    at_once, rows, assumed = calls_at_once(op), work.rows(op).count, work.request.assume.get(op.id)
    said = work.seconds(op)
    if at_once is None or said is None or assumed is None or assumed.seconds_p99 is None:
        return None
    mean, p99 = max(float(said.value), 1e-9), assumed.seconds_p99
    table = mean_and_p99(mean, p99, 10 * max(p99, mean))
    calls = min(float(rows), float(at_once.value))
    own = by_longest(table.alive, table.width, calls, calls, lambda alive, t: 1.0, leaves=True)
    return replace(own, bulk=rest, spread=_spread(table, float(rows)))


def by_longest(
    shares: Sequence[float],
    width: float,
    everywhere: float,
    rows: float,
    step: Callable[[float, float], float],
    *,
    leaves: bool,
) -> Draw:
    """Seconds of a batch of `rows` by how long the longest of `everywhere` is.

    shares: of each cell of `width` tokens, that of responses which live in it. step: seconds of one step with so many
    alive at so many tokens. If the longest ends in cell k, a response lives in cell c < k with the chance q_c =
    (s_c - s_k)/(1 - s_k), and with one at least in cell k - 1, of n responses n (q_c - (q_c - q_{k-1}) (1 - q_{k-1})^{n
    - 1}) / (1 - (1 - q_{k-1})^n) live there in the mean. So over all k each cell has the mean that the model has.
    """
    count = max(1.0, everywhere)
    lasts = [1.0 - (1.0 - share) ** count for share in shares]
    ended = 1.0 - lasts[0]
    chances, found, shared = ([ended], [0.0], [0.0]) if ended > _LEAST_CHANCE else ([], [], [])
    alone = list(accumulate(width * step(1.0, (cell + 0.5) * width) for cell in range(len(shares))))
    for end in range(1, len(shares) + 1):
        beyond = shares[end] if end < len(shares) else 0.0
        chance = lasts[end - 1] - (lasts[end] if end < len(shares) else 0.0)
        if chance <= _LEAST_CHANCE or beyond >= 1.0:
            continue
        last = (shares[end - 1] - beyond) / (1.0 - beyond)
        none, some = (1.0 - last) ** (count - 1.0), 1.0 - (1.0 - last) ** count
        total = 0.0
        for cell in range(end):
            share = (shares[cell] - beyond) / (1.0 - beyond)
            alive = rows * (share - (share - last) * none) / some if leaves else rows
            total += width * step(max(1.0, alive), (cell + 0.5) * width)
        chances.append(chance)
        found.append(total)
        shared.append(max(0.0, 1.0 - alone[end - 1] / total) if leaves else 0.0)
    whole = sum(chances)
    return Draw(
        0.0, chances=tuple(each / whole for each in accumulate(chances)), seconds=tuple(found), shared=tuple(shared)
    )


def _at_once(engine: Engine, rows: float, prompt: float, table: LengthTable) -> float:
    """Rows that an engine decodes at once, as decode.py has it."""
    return max(1.0, min(rows, engine.most_sequences, engine.cache_tokens / (prompt + table.weighted / 2)))


def _spread(table: LengthTable, count: float) -> float:
    """Relative standard deviation of the sum of `count` lengths."""
    return sqrt(max(0.0, table.square / max(table.mean, 1e-9) ** 2 - 1.0) / max(1.0, count))
