"""Modelled seconds of one firing of an op and of one move of weights or state, each as ledger lines that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from flowrl.graph.graph import Kind, Op
from flowrl.graph.judges import reads_answers
from flowrl.graph.params import AskParams, EnvParams, ScoreParams
from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.denoiser import pass_seconds
from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import Placed, micro_batch_tokens, model_inputs, needs_devices
from flowrl.placement.cost.rates import rate_inputs, shares
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import host as host_memory
from flowrl.placement.memory.pool import limit_bytes
from flowrl.placement.time.generation import generate_lines
from flowrl.placement.time.training import Share, forward_lines, update_lines
from flowrl.plan.plan import LedgerLine, Pool

HOST_SECONDS = {Kind.DATA: 1e-5, Kind.REWARD: 2e-4, Kind.ESTIMATOR: 4e-6, Kind.FILTER: 4e-6}
"""Of one row on the host, if `assume:` says nothing. A user's function is assumed; what is FlowRL's own was measured on
a core of a Xeon, on short rows: 6 to 9 µs a row of data, 2 to 3 µs a row of GRPO's estimator."""
OTHER_HOST_SECONDS = 1e-3
CALL_SECONDS = {"judge": 2.0, "sandbox": 1.0}
"""Of one call of a served judge or a sandbox, if `assume:` says nothing. Assumed."""
CALLS_AT_ONCE = 32
"""Of a judge, a sandbox or an environment whose `parallel` is not written. Assumed."""

Lines = list[LedgerLine]


class OpTime:
    """Times of one stage's ops on given pools."""

    def __init__(
        self,
        work: Workload,
        pools: Sequence[Pool],
        cluster: Cluster,
        *,
        limit_bytes: int | None = None,
        in_use: int | None = None,
    ) -> None:
        """`limit_bytes` of a device, and devices `in_use`: if they are not given, as the pools say."""
        self.work, self.pools, self.cluster = work, pools, cluster
        self._limit = limit_bytes
        self._in_use = sum(len(pool.devices) for pool in pools) if in_use is None else in_use

    def host(self, op: Op) -> Lines:
        """One firing of an op of the host pool: its rows one after another, or so many at once. At once, slots are busy
        until the last calls start; then the longest of those that are under way is waited for (Graham 1969)."""
        rows, said = self.work.rows(op), self.work.seconds(op)
        inputs = {"N": Given(rows.count, rows.prompts.origin), "s": said or self._row_seconds(op)}
        at_once = calls_at_once(op)
        if at_once is None:
            return [line("host work", op.role, "seconds", "N*s", inputs)]
        last = self.work.longest_call(op, min(rows.count, float(at_once.value)))
        if last is None:
            return [line("host work", op.role, "seconds", "ceil(N/k)*s", {**inputs, "k": at_once})]
        return [line("host work", op.role, "seconds", "max(0, N/k - 1)*s + z", {**inputs, "k": at_once, "z": last})]

    def _row_seconds(self, op: Op) -> Given:
        called = _called(op)
        if called is not None:
            return Given(CALL_SECONDS[called], f"assumed, a call of a {called}")
        kind = self.work.graph.role(op.role).kind
        return Given(HOST_SECONDS.get(kind, OTHER_HOST_SECONDS), "assumed, a row")

    def together(self, op: Op, placed: Mapping[str, Placed]) -> Lines:
        """One firing of a member of an interaction: all members take the same time. An episode's turns follow one
        another, so its generators' times add up; its environment's turns overlap with those of other episodes, but not
        with its own: what exceeds the generators' time, at least one episode's, is added."""
        members = self.work.interaction(op)
        own = {each.id: self.on_devices(placed[each.role], each) for each in members if each.role in placed}
        spoken = sum(entry.value for lines in own.values() for entry in lines)
        mine = sum(entry.value for entry in own.get(op.id, []))
        lines = list(own.get(op.id, []))
        if spoken > mine:
            inputs = {"g": Given(spoken, "generation of the interaction"), "c": Given(mine, "its own")}
            lines.append(line("turns of others", op.role, "seconds", "g - c", inputs))
        talking = sum(1 for each in members if each.role in placed)
        return [*lines, *self.turns(op, talking, spoken)]

    def turns(self, op: Op, talking: int, spoken: float) -> Lines:
        """What the environments of an interaction add for `op`, whose `talking` generators take `spoken` seconds."""
        lines: Lines = []
        for env in (each for each in self.work.interaction(op) if not needs_devices(self.work.graph.role(each.role))):
            seconds = self.work.seconds(env) or Given(OTHER_HOST_SECONDS, "assumed, a turn")
            turns, rows = self.work.turns(env), self.work.rows(env)
            inputs = {
                "N": Given(rows.count, rows.prompts.origin),
                "t": Given(turns.value * talking, f"{turns.origin}, of {talking} generators"),
                "s": seconds,
                "k": calls_at_once(env) or Given(CALLS_AT_ONCE, "assumed: environments at once"),
                "g": Given(spoken, "generation of the interaction"),
            }
            lines.append(line("environment not hidden", op.role, "seconds", "max(t*s, ceil(N/k)*t*s - g)", inputs))
        return lines

    def on_devices(self, placed: Placed, op: Op) -> Lines:
        """One firing of an op on its pool. Reading a judge's answers takes no model."""
        if placed.shape is None or reads_answers(op):
            return self.host(op)
        passes = self.work.passes(op)
        if passes is not None and placed.backend == "diffusers":
            rows, tokens = self.work.rows(op), Given(self.work.lengths(op).most, "tokens of one pass")
            each = Given(engine_memory.rows_per_rank(placed, rows), f"{rows.count:,} rows / dp {placed.layout.dp}")
            return pass_seconds(placed, tokens, self._rates(placed, "forward"), passes, each)
        if self.work.writes_text(op):
            lines = self._generate(placed, op)
        else:
            lines = self._update(placed, op) if op.method == "update" else self._forward(placed, op)
        return [*lines, *self._controller(placed, op)]

    def _rates(self, placed: Placed, share: str) -> dict[str, Given]:
        return rate_inputs(placed, share, self.cluster.name, self._in_use)

    def _generate(self, placed: Placed, op: Op) -> Lines:
        limit = limit_bytes(placed.pool, self.pools, self.cluster) if self._limit is None else self._limit
        lengths = self.work.lengths(op)
        tokens = engine_memory.cache_tokens(placed, lengths, limit)
        most = placed.role.engine.max_sequences or float("inf")
        if engine_memory.is_engine(placed):
            most = engine_memory.sequences_in_flight(placed)
        carried = self.work.graph.schedule.partial_rollout and op.label is None and op.method == "generate"
        rates = self._rates(placed, "forward")
        return generate_lines(placed, self.work.rows(op), lengths, rates, most, tokens, carried=carried)

    def _share(self, placed: Placed, op: Op) -> Share:
        """What one dp rank works on: without packing, rows are sorted by length and padded within a micro-batch."""
        key = ("share", op.id, placed.layout.dp, placed.micro_batch_tokens)
        found: Share | None = placed.kept.get(key)
        if found is None:
            found = placed.kept[key] = self._shared_out(placed, op)
        return found

    def _shared_out(self, placed: Placed, op: Op) -> Share:
        rows, lengths = self.work.rows(op), self.work.lengths(op)
        passes = self.work.passes(op)
        count = 1 if passes is None else float(passes.value)
        tokens = rows.count * count * lengths.mean / placed.layout.dp
        wanted = micro_batch_tokens(placed, op)
        batches = max(1, -(-int(tokens) // max(wanted, int(lengths.mean), 1)))
        padding = 1.0 if placed.role.engine.packing or passes is not None else lengths.padding(batches)
        each = rows.count / placed.layout.dp
        uneven = lengths.busiest(each, placed.layout.dp) if passes is None else 1.0
        # No rank takes a part of a row: of 32 rows, 6 ranks take 6 or 5.
        straggle = max(1.0 + placed.profile.fixed.straggle * (uneven - 1.0), ceil(each - 1e-9) / each)
        times = "" if passes is None else f" * {passes.origin}"
        how = f"{rows.count:,} rows{times} * {lengths.mean:,.0f} tokens / dp {placed.layout.dp}"
        how += f", {padding - 1:.0%} padding" if padding > 1.0 else ""
        how += f", {straggle - 1:.0%} more on the busiest rank" if straggle > 1.0 else ""
        means = f"{lengths.prompt_mean.origin}; {lengths.response_mean.origin}"
        # A decoder's token attends to half of the row, a denoiser's to all of it.
        row = (
            Given(lengths.weighted, means) if passes is None else Given(2 * lengths.mean, f"twice, not causal: {means}")
        )
        return Share(
            tokens=Given(tokens * padding * straggle, how),
            row=row,
            batches=Given(batches, f"tokens of a rank / micro_batch_tokens {wanted:,}"),
            rows=Given(each * straggle, f"{rows.count:,} rows / dp {placed.layout.dp}"),
        )

    def _update(self, placed: Placed, op: Op) -> Lines:
        return update_lines(placed, self._share(placed, op), self._rates(placed, "train"))

    def _forward(self, placed: Placed, op: Op) -> Lines:
        return forward_lines(placed, self._share(placed, op), self._rates(placed, "forward"))

    def _controller(self, placed: Placed, op: Op) -> Lines:
        """Dispatch of an op to its ranks and collection of its rows: one call a step, whatever its updates."""
        fixed = placed.profile.fixed
        if placed.device.is_cpu or not (fixed.op_seconds or fixed.row_seconds):
            return []
        key = ("controller", op.id)
        inputs: dict[str, Given] | None = placed.kept.get(key)
        if inputs is None:
            inputs = placed.kept[key] = self._controller_inputs(placed, op)
        return [line("controller", op.role, "seconds", "o/F + N*s", inputs)]

    def _controller_inputs(self, placed: Placed, op: Op) -> dict[str, Given]:
        rows, fixed = self.work.rows(op), placed.profile.fixed
        return {
            "N": Given(rows.count, rows.prompts.origin),
            "o": Given(fixed.op_seconds, f"a call ({placed.profile.origin})"),
            "F": Given(op.firings, "firings of one call"),
            "s": Given(fixed.row_seconds, f"a row ({placed.profile.origin})"),
        }

    def move_state(self, placed: Placed, away: Lines | None = None) -> Lines:
        """Load or offload: the role's state over the device's link to its host. `away`: `off_device_lines`, if the
        caller has them."""
        achieved, fixed = shares(placed), placed.profile.fixed
        rate = placed.device.host_bytes_per_second * achieved.host
        wakes = placed.role.kind is Kind.GENERATOR
        away = host_memory.off_device_lines(placed) if away is None else away
        state = 0 if placed.device.is_cpu else bytes_of(away)
        inputs = {
            "s": Given(state, "state of a device"),
            "h": Given(rate, f"{achieved.host:.0%} of catalogue {placed.device.name} host link"),
            "y": Given(fixed.wake_seconds if state and wakes else 0.0, f"sleep or wake ({placed.profile.origin})"),
        }
        return [line("state moved", placed.role.name, "seconds", "s/h + y", inputs)]

    def save(self, placed: Placed) -> Lines:
        """A checkpoint: float32 weights and optimizer states of all ranks to one disk."""
        inputs = {
            **model_inputs(placed),
            "d": Given(
                placed.profile.fixed.disk * placed.group.disk_bytes_per_second,
                f"one node's disk ({placed.profile.origin})",
            ),
        }
        trained = "A" if placed.adapter else "P"
        return [line("checkpoint", placed.role.name, "seconds", f"12*{trained}/d", inputs)]


def calls_at_once(op: Op) -> Given | None:
    """How many calls of a judge's endpoint, a sandbox or an environment run at once; None for what runs row by row."""
    params = op.params
    if isinstance(params, EnvParams | AskParams):
        written = params.parallel
    elif isinstance(params, ScoreParams) and _called(op) is not None:
        written = params.extra[params.flavour].get("parallel")
    else:
        return None
    return Given(CALLS_AT_ONCE, "assumed") if written is None else Given(written, f"roles.{op.role}: parallel")


def _called(op: Op) -> str | None:
    """What serves the op call by call: a judge or a sandbox."""
    if isinstance(op.params, AskParams):
        return "judge"
    return "sandbox" if isinstance(op.params, ScoreParams) and op.params.flavour == "sandbox" else None
