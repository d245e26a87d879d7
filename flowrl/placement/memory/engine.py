"""Memory of an inference engine on one device: vLLM and transformers' generate, at rest and at work.

vLLM takes `kv_fraction` of the device for weights, workspace and KV cache, all at once when it starts (vLLM's
`gpu_memory_utilization`); the cache is what the other two leave. On a CPU our engine asks for a cache of a fixed size
(backends/generators/vllm_settings.py). transformers grows its cache with the batch.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.workload import Lengths, Rows
from flowrl.placement.memory.training import Lines, layer_activations

VLLM_BATCH_TOKENS = 8192
"""Tokens of one engine step at most (vLLM's max_num_batched_tokens for an offline engine)."""
VLLM_SEQUENCES = 256
"""Sequences in flight at most (max_num_seqs)."""
CPU_CACHE_BYTES = 2**30
"""What the engine takes for its cache on a CPU at most."""


def is_vllm(placed: Placed) -> bool:
    return placed.backend == "vllm"


def sequences_in_flight(placed: Placed) -> int:
    """Sequences that one engine decodes at once."""
    return int(placed.role.engine.extra.get("max_num_seqs", VLLM_SEQUENCES))


def rows_per_rank(placed: Placed, rows: Rows) -> int:
    return -(-rows.count // placed.layout.dp)


def weights_line(placed: Placed) -> Lines:
    """The model's, and its LoRA adapter's (each device holds it whole)."""
    inputs, role = model_inputs(placed), placed.role.name
    adapter = [line("adapter", role, "bytes", "w*A", inputs)] if placed.adapter else []
    return [line("weights", role, "bytes", "w*P/tp", inputs), *adapter]


def start_lines(placed: Placed, lengths: Lengths) -> Lines:
    """What a vLLM engine must find room for when it starts: weights, workspace and one sequence of the longest."""
    inputs = {**model_inputs(placed), **_cache_inputs(placed, lengths)}
    one = line("KV cache of one longest sequence", placed.role.name, "bytes", "t*K", inputs)
    return [*weights_line(placed), *_workspace(placed), one]


def engine_limit_bytes(placed: Placed, limit_bytes: int) -> int:
    """What the engine may take of the device."""
    return int(placed.role.engine.kv_fraction * limit_bytes)


def resident_lines(placed: Placed, lengths: Lengths | None, limit_bytes: int) -> Lines:
    """What the engine holds between its calls, if it is not put to sleep. `lengths` None: it only scores."""
    if not is_vllm(placed):
        return weights_line(placed)
    lines = [*weights_line(placed), *_workspace(placed)]
    if lengths is None:
        return lines
    inputs = {**model_inputs(placed), **_cache_inputs(placed, lengths)}
    if placed.device.is_cpu:
        inputs["N"] = Given(sequences_in_flight(placed), "sequences in flight at most")
        inputs["cap"] = Given(CPU_CACHE_BYTES, "cache of an engine on a CPU at most")
        return [*lines, line("KV cache", placed.role.name, "bytes", "max(t*K, min(N*t*K, cap))", inputs)]
    role = placed.role
    inputs["M"] = Given(limit_bytes, f"catalogue {placed.device.name}")
    inputs["u"] = Given(role.engine.kv_fraction, placed.kv_origin)
    inputs["taken"] = Given(bytes_of(lines), "weights and workspace")
    return [*lines, line("KV cache", role.name, "bytes", "max(t*K, u*M - taken)", inputs)]


def generate_lines(placed: Placed, rows: Rows, lengths: Lengths, limit_bytes: int) -> Lines:
    """While it generates."""
    if is_vllm(placed):
        return resident_lines(placed, lengths, limit_bytes)
    inputs = {**model_inputs(placed), **_cache_inputs(placed, lengths)}
    inputs["a"] = layer_activations(placed)
    inputs["N"] = Given(rows_per_rank(placed, rows), f"{rows.count:,} rows / dp {placed.layout.dp}")
    inputs["p"] = lengths.prompt_most
    role = placed.role.name
    return [
        *weights_line(placed),
        line("KV cache", role, "bytes", "N*t*K*(1 + 1/L)", inputs),
        max(
            line("layer work", role, "bytes", "N*p*a", inputs),
            line("logits", role, "bytes", "N*V*(w + 12)", inputs),
            key=lambda each: each.value,
        ),
    ]


def receive_lines(placed: Placed, resident: Lines) -> Lines:
    """While new weights come in, one tensor at a time, into what is already there; an adapter comes whole."""
    if placed.adapter:
        inputs = model_inputs(placed)
        return [*resident, line("adapter being received", placed.role.name, "bytes", "w*A", inputs)]
    inputs = {**model_inputs(placed), "B": Given(placed.model.largest_tensor, placed.model.origin)}
    return [*resident, line("tensor being received", placed.role.name, "bytes", "w*B", inputs)]


def cache_tokens(placed: Placed, lengths: Lengths, limit_bytes: int) -> float:
    """Tokens that the KV cache of one engine holds."""
    per_token = placed.model.kv_bytes_per_token(placed.dtype_bytes, placed.layout.tp)
    if not is_vllm(placed):
        return float("inf")
    held = next(each.value for each in resident_lines(placed, lengths, limit_bytes) if each.what == "KV cache")
    return max(1.0, held / per_token)


def _cache_inputs(placed: Placed, lengths: Lengths) -> dict[str, Given]:
    per_token = placed.model.kv_bytes_per_token(placed.dtype_bytes, placed.layout.tp)
    shape, tp = placed.model, placed.layout.tp
    heads = max(1, shape.kv_heads // tp)
    how = f"2 * {shape.layers} layers * {heads} key-value heads here * {shape.head_dim} * {placed.dtype_bytes} bytes"
    both = f"prompt {lengths.prompt_most.origin}; response {lengths.response_most.origin}"
    return {"K": Given(per_token, how), "t": Given(lengths.most, both)}


def _workspace(placed: Placed) -> Lines:
    """The engine's own peak in its start-up trial: a full batch through one layer, and float32 logits of all sequences
    with a copy for sampling (assumed; the trial measures it on the device)."""
    inputs = {
        **model_inputs(placed),
        "B": Given(VLLM_BATCH_TOKENS, "vLLM's max_num_batched_tokens"),
        "S": Given(sequences_in_flight(placed), "max_num_seqs"),
    }
    return [line("engine workspace", placed.role.name, "bytes", "B*w*(4*H + 3*e*F/tp) + 8*S*V", inputs)]
