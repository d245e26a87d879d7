"""Time of generation: prefill by operations, decode by bytes read, over a batch that shrinks as responses finish.

Lengths: the share of responses longer than t is (1 - t/M)^(M/m - 1), which has the given mean m and most M; with
m = M/2 (the rule without `assume:`) lengths are uniform. Its integral gives the time of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.rates import shares
from flowrl.placement.cost.workload import Lengths, Rows
from flowrl.plan.plan import LedgerLine

SLICES = 64


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine (a dp rank) can do, in units of a second and a byte."""

    flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    step_seconds: float
    most_sequences: float
    cache_tokens: float


def survival(t: float, mean: float, most: float) -> float:
    """Share of responses longer than `t` tokens."""
    if t >= most:
        return 0.0
    return (1.0 - t / most) ** max(0.0, most / max(mean, 1e-9) - 1.0)


def step_seconds(shape: ModelShape, engine: Engine, tp: int, dtype_bytes: int, batch: float, context: float) -> float:
    """One decode step of `batch` sequences with `context` tokens each.

    Bytes: the weights that some token meets (all experts that the batch touches) and every sequence's keys and values;
    operations: 2 per parameter and token. The slower of the two, two all-reduces a layer if tp > 1, fixed costs.
    """
    idle = 1.0
    if shape.experts:
        idle = 1.0 - (1.0 - (1.0 - shape.experts_per_token / shape.experts) ** batch)
    resting = idle * shape.layers * shape.experts * shape.expert_parameters if shape.experts else 0.0
    parameters, multiplied = _parameters(shape)
    weights = (parameters - resting) * dtype_bytes / tp
    cache = batch * context * shape.kv_bytes_per_token(dtype_bytes, tp)
    reading = (weights + cache) / engine.memory_bytes_per_second
    computing = 2.0 * multiplied * batch / tp / engine.flops_per_second
    reduces = 4.0 * shape.layers * batch * shape.hidden * dtype_bytes * (tp - 1) / tp / engine.link_bytes_per_second
    return max(reading, computing) + reduces + engine.step_seconds


@lru_cache(maxsize=256)
def _parameters(shape: ModelShape) -> tuple[int, int]:
    """All, and those that multiply: asked for every slice of every candidate."""
    return shape.parameters, shape.multiplied_parameters


def decode_seconds(
    shape: ModelShape, engine: Engine, tp: int, dtype_bytes: int, rows: float, prompt: float, mean: float, most: float
) -> float:
    """Expected seconds of decoding `rows` sequences on one engine: a step at t is made if any still lives, which has
    the chance 1 - (1 - s)^rows, with the mean number of living ones. Where more live than fit the cache or the
    engine's limit, they take turns: the same work in more steps."""
    total, width = 0.0, most / SLICES
    for index in range(SLICES):
        t = (index + 0.5) * width
        share = survival(t, mean, most)
        chance = 1.0 - (1.0 - share) ** max(1.0, rows)
        if chance <= 0.0:
            break
        alive = max(1.0, rows * share / chance)
        context = prompt + t
        together = max(1.0, min(alive, engine.most_sequences, engine.cache_tokens / context))
        step = step_seconds(shape, engine, tp, dtype_bytes, together, context)
        total += width * chance * step * (alive / together)
    return total


def steady_seconds(
    shape: ModelShape, engine: Engine, tp: int, dtype_bytes: int, rows: float, prompt: float, mean: float
) -> float:
    """Seconds of decoding the tokens of `rows` sequences on one engine that never runs empty: responses that are not
    done when the others are go on in the next step (partial rollouts), so nobody waits for the longest."""
    context = prompt + mean / 2
    together = max(1.0, min(rows, engine.most_sequences, engine.cache_tokens / context))
    return rows * mean / together * step_seconds(shape, engine, tp, dtype_bytes, together, context)


def generate_time(
    placed: Placed,
    rows: Rows,
    lengths: Lengths,
    rates: dict[str, Given],
    sequences: float,
    cache_tokens: float,
    *,
    carried: bool = False,
) -> list[LedgerLine]:
    """Ledger lines in seconds of one firing of `generate`. `carried`: unfinished responses go on in the next step."""
    shape, layout, fixed = placed.model, placed.layout, shares(placed)
    engine = Engine(
        flops_per_second=rates["X"].value,
        memory_bytes_per_second=rates["Y"].value,
        link_bytes_per_second=rates["Z"].value,
        step_seconds=fixed.decode_step_seconds + fixed.decode_layer_seconds * shape.layers,
        most_sequences=sequences,
        cache_tokens=cache_tokens,
    )
    each = rows.count / layout.dp
    prompt, mean, most = (
        float(given.value) for given in (lengths.prompt_mean, lengths.response_mean, lengths.response_tail)
    )
    if carried:
        whole = steady_seconds(shape, engine, layout.tp, placed.dtype_bytes, each, prompt, mean)
    else:
        whole = decode_seconds(shape, engine, layout.tp, placed.dtype_bytes, each, prompt, mean, most)
    prefilled = each if placed.backend != "vllm" else max(1.0, rows.prompts.value / layout.dp)
    inputs = {
        **model_inputs(placed),
        **rates,
        "Pm": Given(shape.multiplied_parameters, shape.origin),
        "N": Given(prefilled, "prompts of one engine; vLLM computes a prompt once for all its samples"),
        "p": lengths.prompt_mean,
        "M": lengths.response_tail,
        "s": Given(whole / most, f"mean decode step: {each:,.0f} sequences at first, response mean {mean:,.0f}"),
    }
    return [
        line("prefill", placed.role.name, "seconds", "N*p*(2*Pm + 2*L*q*p)/(tp*X)", inputs),
        line("decode, tail carried over" if carried else "decode", placed.role.name, "seconds", "M*s", inputs),
    ]
