"""How the rows of a rank are cut into micro-batches at their longest: what bounds memory. Knows no role beside it."""

from __future__ import annotations

from math import ceil

from flowrl.graph.graph import Op
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed, micro_batch_tokens
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory


def micro_batch(work: Workload, placed: Placed, op: Op) -> tuple[Given, int]:
    """Tokens of one micro-batch on a device and how many there are: at least one whole sequence, at most all rows. cp
    cuts a sequence over its devices."""
    wanted, key, role = micro_batch_tokens(placed, op), op.method, placed.role.name
    longest, rows = work.lengths(op).most, engine_memory.rows_per_rank(placed, work.rows(op))
    longest = -(-longest // placed.layout.cp)
    origin = work.request.origin("roles", role, key, "micro_batch_tokens")
    if origin == "default":
        origin = work.request.origin("roles", role, "micro_batch_tokens")
    if placed.micro_batch_tokens is not None:
        origin = "decided by placement"
    passes = work.passes(op)
    rows = rows if passes is None else ceil(rows * passes.value)
    whole = rows * longest
    if wanted < longest:
        return Given(longest, f"one longest sequence, over micro_batch_tokens {wanted:,} ({origin})"), rows
    if whole <= wanted:
        return Given(whole, f"all {rows:,} rows of a rank at their longest, under micro_batch_tokens {wanted:,}"), 1
    return Given(wanted, f"micro_batch_tokens, {origin}"), -(-whole // wanted)
