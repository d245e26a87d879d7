"""Modelled seconds of one firing of an op and of one move of weights or state, each as ledger lines that add up."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.graph.graph import Kind, Op
from flowrl.machine.cluster import Cluster
from flowrl.placement import engine_memory, host_memory
from flowrl.placement.decode import generate_time
from flowrl.placement.ledger import Given, bytes_of, line
from flowrl.placement.memory import limit_bytes
from flowrl.placement.placed import Placed, model_inputs
from flowrl.placement.rates import DISK_BYTES_PER_SECOND, SYNC_SECONDS, rate_inputs, shares
from flowrl.placement.workload import Workload
from flowrl.plan.plan import LedgerLine, Pool

HOST_SECONDS = {Kind.DATA: 1e-4, Kind.REWARD: 2e-4, Kind.ESTIMATOR: 2e-5, Kind.FILTER: 2e-5}
"""Of one row on the host, if `assume:` says nothing. Assumed."""
OTHER_HOST_SECONDS = 1e-3

Lines = list[LedgerLine]


class OpTime:
    """Times of one stage's ops on given pools."""

    def __init__(self, work: Workload, pools: Sequence[Pool], cluster: Cluster) -> None:
        self.work, self.pools, self.cluster = work, pools, cluster

    def host(self, op: Op) -> Lines:
        """One firing of an op of the host pool."""
        rows, said = self.work.rows(op), self.work.seconds(op)
        kind = self.work.graph.role(op.role).kind
        assumed = Given(HOST_SECONDS.get(kind, OTHER_HOST_SECONDS), "assumed, a row")
        inputs = {"N": Given(rows.count, rows.prompts.origin), "s": said or assumed}
        return [line("host work", op.role, "seconds", "N*s", inputs)]

    def on_devices(self, placed: Placed, op: Op) -> Lines:
        """One firing of an op on its pool."""
        if placed.shape is None:
            return self.host(op)
        if op.method == "generate":
            return self._generate(placed, op)
        return self._update(placed, op) if op.method == "update" else self._forward(placed, op)

    def _rates(self, placed: Placed, share: str) -> dict[str, Given]:
        in_use = sum(len(pool.devices) for pool in self.pools)
        return rate_inputs(placed, share, self.cluster.name, in_use)

    def _generate(self, placed: Placed, op: Op) -> Lines:
        limit = limit_bytes(placed.pool, self.pools, self.cluster)
        lengths = self.work.lengths(op)
        tokens = engine_memory.cache_tokens(placed, lengths, limit)
        most = engine_memory.sequences_in_flight(placed) if engine_memory.is_vllm(placed) else float("inf")
        return generate_time(placed, self.work.rows(op), lengths, self._rates(placed, "forward"), most, tokens)

    def _tokens(self, placed: Placed, op: Op) -> dict[str, Given]:
        """D tokens of a rank, S mean tokens of a row, m micro-batches of a rank."""
        rows, lengths = self.work.rows(op), self.work.lengths(op)
        tokens = rows.count * lengths.mean / placed.layout.dp
        wanted = getattr(op.params, "micro_batch_tokens", 16384)
        batches = max(1, -(-int(tokens) // max(wanted, int(lengths.mean), 1)))
        how = f"{rows.count:,} rows * {lengths.mean:,.0f} tokens / dp {placed.layout.dp}"
        means = f"{lengths.prompt_mean.origin}; {lengths.response_mean.origin}"
        return {
            "D": Given(tokens, how),
            "S": Given(lengths.mean, means),
            "m": Given(batches, f"tokens of a rank / micro_batch_tokens {wanted:,}"),
        }

    def _inputs(self, placed: Placed, op: Op, share: str) -> dict[str, Given]:
        shape = placed.model
        return {
            **model_inputs(placed),
            **self._rates(placed, share),
            **self._tokens(placed, op),
            "Pm": Given(shape.multiplied_parameters, shape.origin),
            "l": Given(shares(placed).layer_seconds, "assumed: launching a layer"),
        }

    def _update(self, placed: Placed, op: Op) -> Lines:
        """6 operations per parameter and token (Kaplan et al. 2020), 8 with full recomputation; causal attention
        6·L·q·S more. FSDP gathers all weights twice and reduce-scatters float32 gradients once a firing; what
        compute does not hide is added. Pipeline bubbles: (m + pp - 1) / m (Narayanan et al. 2021)."""
        inputs, role = self._inputs(placed, op, "train"), placed.role.name
        how = f"operations per parameter and token, recompute {placed.recompute}"
        inputs["f"] = Given(8 if placed.recompute == "full" else 6, how)
        compute = line("compute", role, "seconds", "D*(f*Pm + f*L*q*S)/(tp*pp*X)*(m + pp - 1)/m + m*L*l/pp", inputs)
        inputs["c"] = Given(compute.value, "compute")
        volume = "(2*m*w + 4)*P*(dp - 1)/dp/Z" if placed.backend == "fsdp" else "(w + 4)*P/(tp*pp)*(dp - 1)/dp/Z"
        return [
            compute,
            line("communication not hidden", role, "seconds", f"max(0, {volume} - c)", inputs),
            line("optimizer step", role, "seconds", "28*P/(dp*tp*pp)/Y", inputs),
        ]

    def _forward(self, placed: Placed, op: Op) -> Lines:
        """2 operations per parameter and token; FSDP gathers all weights once a micro-batch."""
        inputs, role = self._inputs(placed, op, "forward"), placed.role.name
        compute = line("compute", role, "seconds", "D*(2*Pm + 2*L*q*S)/(tp*pp*X) + m*L*l/3", inputs)
        if placed.backend != "fsdp":
            return [compute]
        inputs["c"] = Given(compute.value, "compute")
        gather = line("communication not hidden", role, "seconds", "max(0, m*w*P*(dp - 1)/dp/Z - c)", inputs)
        return [compute, gather]

    def move_weights(self, placed: Placed, *, receiving: bool, across_nodes: bool) -> Lines:
        """Each rank writes its own shards to host memory, each engine reads what it holds; between nodes the slower of
        the device's host link and the network."""
        device = placed.device
        rate, how = device.host_bytes_per_second, f"catalogue {device.name} host link"
        if across_nodes and placed.group.network_bytes_per_second < rate:
            rate, how = placed.group.network_bytes_per_second, "network of a device"
        inputs = {
            **model_inputs(placed),
            "h": Given(rate * shares(placed).link, f"{shares(placed).link:.0%} of {how}"),
            "y": Given(SYNC_SECONDS, "assumed: lock, cache reset"),
        }
        cut = "tp" if receiving else "(dp*tp*pp)"
        return [line("weights moved", placed.role.name, "seconds", f"w*P/{cut}/h + y", inputs)]

    def move_state(self, placed: Placed) -> Lines:
        """Load or offload: the role's state over the device's link to its host."""
        rate = placed.device.host_bytes_per_second * shares(placed).link
        state = 0 if placed.device.is_cpu else bytes_of(host_memory.off_device_lines(placed))
        inputs = {"s": Given(state, "state of a device"), "h": Given(rate, f"catalogue {placed.device.name} host link")}
        return [line("state moved", placed.role.name, "seconds", "s/h", inputs)]

    def save(self, placed: Placed) -> Lines:
        """A checkpoint: float32 weights and optimizer states of all ranks to one disk."""
        inputs = {**model_inputs(placed), "d": Given(DISK_BYTES_PER_SECOND, "assumed: one disk")}
        return [line("checkpoint", placed.role.name, "seconds", "12*P/d", inputs)]
