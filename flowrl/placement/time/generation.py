"""Seconds of one firing of `generate` on its engines, as ledger lines: prefill, then decode.

Takes a placed generator, its rows and lengths; makes the Engine that decode.py integrates over. Knows no graph.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.rates import axis_group
from flowrl.placement.cost.workload import Lengths, Rows
from flowrl.placement.time.decode import Engine, decode_seconds, steady_seconds
from flowrl.plan.plan import LedgerLine

PREFIX_CACHE = ("vllm", "sglang", "tensorrt_llm")
"""Engines that take new rows as others finish."""
SHARED_PROMPT = (*PREFIX_CACHE, "hf")
"""What computes a prompt once for all its samples; `hf` repeats its cache for them."""
CHUNK_TOKENS = 8192
"""Tokens of one step of prefill where the flow does not say."""


def generate_lines(
    placed: Placed,
    rows: Rows,
    lengths: Lengths,
    rates: dict[str, Given],
    sequences: float,
    cache_tokens: float,
    *,
    carried: bool = False,
) -> list[LedgerLine]:
    """Ledger lines in seconds. `carried`: unfinished responses go on in the next step."""
    shape, layout, table = placed.model, placed.layout, lengths.responses
    longest = table.longest_of(rows.count)
    engine = engine_of(placed, rates, sequences, cache_tokens, longest)
    each = max(1.0, rows.count / layout.dp)
    prompt = float(lengths.prompt_mean.value)
    if carried:
        whole, steps = steady_seconds(shape, engine, each, prompt, table), max(1.0, table.mean)
    else:
        whole, steps = decode_seconds(shape, engine, each, rows.count, prompt, table), longest * engine.stepped
    shared = placed.backend in SHARED_PROMPT
    prefilled = max(1.0, rows.prompts.value / layout.dp) if shared else each
    ridge = placed.device.bf16_flops_per_second / placed.device.memory_bytes_per_second * placed.rates.traffic
    chunk = max(1.0, min(prefilled * prompt, placed.role.engine.max_batch_tokens or CHUNK_TOKENS))
    slow = 1.0 + ridge * (1.0 / chunk + 1.0 / shape.hidden + layout.tp / (shape.dense_ffn or shape.ffn))
    how = "prompts of one engine"
    inputs = {
        **model_inputs(placed),
        **rates,
        "Pm": Given(shape.multiplied_parameters, shape.origin),
        "N": Given(prefilled, f"{how}; {placed.backend} computes a prompt once for all its samples" if shared else how),
        "p": lengths.prompt_mean,
        "a": Given(shape.causal_flops(prompt) / max(1.0, prompt), "attention of a token of the prompt"),
        "u": Given(slow, f"products over their peak, {chunk:,.0f} tokens at once ({placed.profile.origin})"),
        "M": Given(steps, f"steps: {_said(lengths)}"),
        "s": Given(whole / max(steps, 1e-9), f"mean decode step: {each:,.0f} sequences at first"),
    }
    role, prefill = placed.role.name, "N*p*(2*Pm*u + a)/(tp*pp*X)"
    if placed.device.is_cpu:
        inputs |= _call_inputs(placed, each)
        prefill += " + o + L*l + n*r"
    return [
        line("prefill", role, "seconds", prefill, inputs),
        line("decode, tail carried over" if carried else "decode", role, "seconds", "M*s", inputs),
    ]


def _call_inputs(placed: Placed, rows: float) -> dict[str, Given]:
    """What a call takes whatever its tokens, as a pass forward does: a third of one that trains."""
    achieved, how = placed.rates, f"a third of a pass that trains ({placed.profile.origin})"
    return {
        "o": Given(achieved.micro_batch_seconds / 3, f"a call: {how}"),
        "l": Given(achieved.layer_seconds / 3, f"a layer: {how}"),
        "n": Given(rows, "sequences of one engine"),
        "r": Given(achieved.row_seconds / 3, f"a row: {how}"),
    }


def _said(lengths: Lengths) -> str:
    return f"responses of {lengths.response_mean.value:,.0f} in the mean ({lengths.response_mean.origin})"


def engine_of(placed: Placed, rates: dict[str, Given], sequences: float, cache_tokens: float, longest: float) -> Engine:
    """What one engine of a generator can do. `longest`: tokens of the response that is waited for, the first of which
    comes with the prompt; on a GPU the steps that make thousands are counted as the tokens."""
    achieved, layout, said = placed.rates, placed.layout, placed.role.engine
    group = axis_group(placed, "tp")
    layers = placed.model.layers
    on_cpu, shape = placed.device.is_cpu, placed.model
    graphs = said.cuda_graphs and placed.backend in PREFIX_CACHE and not on_cpu
    ridge = placed.device.bf16_flops_per_second / placed.device.memory_bytes_per_second * achieved.decode_traffic
    a_layer = achieved.decode_layer_seconds * layers if graphs else 0.0
    waiting = placed.profile.moe.decode_layer_seconds * achieved.host_seconds * placed.model.sparse_layers
    return Engine(
        flops_per_second=float(rates["X"].value),
        memory_bytes_per_second=float(rates["Y"].value),
        link_bytes_per_second=group.bytes_per_second,
        step_seconds=achieved.decode_step_seconds + a_layer + waiting,
        most_sequences=sequences,
        cache_tokens=cache_tokens,
        sequence_seconds=achieved.decode_sequence_seconds,
        floor_seconds=0.0 if graphs else achieved.eager_layer_seconds * layers,
        waits=on_cpu,
        slow=1.0 + ridge * (1.0 / shape.hidden + layout.tp / (shape.dense_ffn or shape.ffn)),
        shrinks=placed.backend == "hf",
        stepped=1.0 - 1.0 / max(longest, 1.0) if on_cpu else 1.0,
        reduce_seconds=2 * group.seconds,
        imbalance=placed.profile.moe.imbalance if layout.ep > 1 else 1.0,
        tp=layout.tp,
        pp=layout.pp,
        weight_bytes=1 if said.weights_dtype == "fp8" else placed.dtype_bytes,
        cache_bytes=1 if said.kv_dtype == "fp8" else placed.dtype_bytes,
        activation_bytes=placed.dtype_bytes,
        leaves=placed.backend in PREFIX_CACHE,
    )
