"""Memory of a generator on one device: inference engines, transformers' generate, DeepSpeed's hybrid engine.

An engine takes a share of the device when it starts (`kv_fraction`), and its cache is what the rest of it leaves:
  vLLM          u*(M - driver) = weights + peak of a trial step + graphs + cache   (v1/worker/gpu_worker.py,
                determine_available_memory; its trial step: max_num_batched_tokens through one layer, then the sampler
                over max_num_seqs)
  SGLang        u*(M - driver) = weights + cache; steps and graphs have the rest   (mem_fraction_static)
  TensorRT-LLM  u*(what weights and a trial step leave) = cache                    (free_gpu_memory_fraction)
On a CPU our engine asks for a cache of a fixed size (backends/generators/vllm_settings.py). Generators that are no
engines grow their cache with the batch. What follows from no shape is in the profile (machine/memory.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from flowrl.machine.engines import graph_sizes, limits
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.ledger import Given, are_whole, bytes_of, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.workload import Lengths, Rows
from flowrl.placement.memory.training import Lines, layer_activations
from flowrl.placement.memory.weights import has_narrow_weights, sequence_bytes
from flowrl.placement.memory.weights import weights_line as made_weights
from flowrl.plan.plan import LedgerLine

CPU_CACHE_BYTES = 2**30
"""What the engine takes for its cache on a CPU at most."""


def _once(make: Callable[[Placed], Lines]) -> Callable[[Placed], Lines]:
    """Lines of a role, made once: several moments hold the same."""

    @wraps(make)
    def asked(placed: Placed) -> Lines:
        key = (make, are_whole())
        found = placed.lines.get(key)
        if found is None:
            found = placed.lines[key] = make(placed)
        return found

    return asked


weights_line = _once(made_weights)


def is_engine(placed: Placed) -> bool:
    return placed.backend in ENGINES


def sequences_in_flight(placed: Placed) -> int:
    """Sequences that one engine decodes at once."""
    return placed.role.engine.max_sequences or limits(placed.backend, placed.device).sequences


def rows_per_rank(placed: Placed, rows: Rows) -> int:
    return -(-rows.count // placed.layout.dp)


def start_lines(placed: Placed, lengths: Lengths) -> Lines:
    """What an engine must find room for in its share when it starts: weights, its trial step and one sequence of the
    longest."""
    one, inputs = sequence_bytes(placed, lengths)
    taken = _static(placed) if placed.backend == "sglang" else _taken(placed)
    return [*taken, line("KV cache of one longest sequence", placed.role.name, "bytes", one, inputs)]


def engine_limit_bytes(placed: Placed, limit_bytes: int) -> int:
    """What the engine may take of the device."""
    return int(placed.kv_fraction * (limit_bytes - placed.profile.memory.driver_bytes))


def resident_lines(placed: Placed, lengths: Lengths | None, limit_bytes: int) -> Lines:
    """What the generator holds between its calls, if it is not put to sleep. `lengths` None: it only scores."""
    if not is_engine(placed):
        return idle_lines(placed)
    lines = [*weights_line(placed), *_workspace(placed)]
    if placed.device.is_cpu:
        return lines if lengths is None else [*lines, _cpu_cache(placed, lengths)]
    lines = [*lines, *_graphs(placed), *process_lines(placed)]
    return lines if lengths is None else [*lines, _cache(placed, lengths, limit_bytes)]


def awake_lines(placed: Placed) -> Lines:
    """An engine whose weights are awake and whose cache is not: while new weights come in."""
    if placed.device.is_cpu:
        return [*weights_line(placed)]
    return [*weights_line(placed), *_graphs(placed), *process_lines(placed)]


def asleep_lines(placed: Placed) -> Lines:
    """What an engine leaves on its device while it sleeps."""
    if not is_engine(placed) or placed.device.is_cpu:
        return []
    known = placed.profile.engine_memory(placed.backend)
    inputs = _process_inputs(placed) | {"a": Given(known.asleep_bytes, f"blocks that stay asleep: {known.source}")}
    kept = line("asleep", placed.role.name, "bytes", "o + i + n + a", inputs)
    return [kept, *_graphs(placed)]


@_once
def process_lines(placed: Placed) -> Lines:
    """An engine's process on a GPU: context, workspaces of libraries, buffers of collectives."""
    return [line("engine process", placed.role.name, "bytes", "o + i + n", _process_inputs(placed))]


def idle_lines(placed: Placed) -> Lines:
    """Of a generator that is no engine. DeepSpeed's holds its part of the weights until it generates, or has the
    trainer's (runtime/hybrid_engine.py)."""
    if placed.shared:
        return []
    if placed.backend == "deepspeed":
        return [line("weights", placed.role.name, "bytes", "w*P/(dp*tp)", model_inputs(placed))]
    return weights_line(placed)


def generate_lines(placed: Placed, rows: Rows, lengths: Lengths, limit_bytes: int) -> Lines:
    """While it generates."""
    if is_engine(placed):
        return resident_lines(placed, lengths, limit_bytes)
    one, inputs = sequence_bytes(placed, lengths)
    inputs["a"] = layer_activations(placed)
    here, most = rows_per_rank(placed, rows), placed.role.engine.max_sequences
    how = f"{rows.count:,} rows / dp {placed.layout.dp}"
    at_once = here if most is None else min(here, most)
    inputs["N"] = Given(at_once, how if at_once == here else f"max_sequences, of {how}")
    inputs["p"] = lengths.prompt_most
    role = placed.role.name
    missing = line("gathered weights", role, "bytes", "w*P/tp*(dp - 1)/dp", inputs)
    gathered = [missing] if placed.backend == "deepspeed" and placed.layout.dp > 1 else []
    grown = "*(1 + 1/L)" if placed.backend != "deepspeed" else ""
    return [
        *idle_lines(placed),
        *gathered,
        line("KV cache", role, "bytes", f"N*({one}){grown}", inputs),
        max(
            line("layer work", role, "bytes", "N*p*a", inputs),
            line("logits", role, "bytes", "N*V*(w + 12)", inputs),
            key=lambda each: each.value,
        ),
    ]


def receive_lines(placed: Placed, resident: Lines) -> Lines:
    """While new weights come in, into what is already there: one piece of them, at least one tensor. Engines of some
    generations with weights in fp8 keep a whole layer, of experts their own, until it is complete and can be quantised
    (vLLM's layer-wise reload, verl-project/verl#7987); an adapter comes whole."""
    role = placed.role.name
    if placed.adapter:
        return [*resident, line("adapter being received", role, "bytes", "w*A", model_inputs(placed))]
    known = placed.profile.memory
    inputs = {
        **model_inputs(placed),
        "B": Given(placed.model.largest_tensor, f"largest tensor: {placed.model.origin}"),
        "g": Given(known.bucket_bytes, f"a piece: {known.source}"),
        "Y": Given(placed.model.experts * placed.model.expert_parameters, "experts of a layer"),
        "ep": Given(placed.layout.ep, placed.layout_origin),
    }
    if has_narrow_weights(placed) and placed.profile.engine_memory(placed.backend).layerwise:
        layer = "w*(Lp - Y + Y/ep)" if placed.model.experts else "w*Lp"
        return [*resident, line("layer being received", role, "bytes", f"max(g, w*B, {layer})", inputs)]
    return [*resident, line("tensor being received", role, "bytes", "max(g, w*B)", inputs)]


def cache_tokens(placed: Placed, lengths: Lengths, limit_bytes: int) -> float:
    """Tokens that the KV cache of one engine holds, in whole blocks; of a model with windows or states, tokens of
    sequences as long as the longest."""
    if not is_engine(placed):
        return float("inf")
    layout = placed.layout
    key = ("cache tokens", layout.tp, layout.pp, layout.ep, placed.memory_share, limit_bytes, lengths.most)
    found: float | None = placed.kept.get(key)
    if found is None:
        found = placed.kept[key] = _cache_tokens(placed, lengths, limit_bytes)
    return found


def _cache_tokens(placed: Placed, lengths: Lengths, limit_bytes: int) -> float:
    held = next(each.value for each in resident_lines(placed, lengths, limit_bytes) if each.what == "KV cache")
    one, inputs = sequence_bytes(placed, lengths)
    block = float(inputs["b"].value)
    per_token = line("one", None, "bytes", one, inputs).value / (-(-float(inputs["t"].value) // block) * block)
    return max(1.0, held / per_token // block * block)


def _cache(placed: Placed, lengths: Lengths, limit_bytes: int) -> LedgerLine:
    """What the engine's share leaves, at least one sequence (which `start ROLE` then refuses)."""
    one, inputs = sequence_bytes(placed, lengths)
    inputs["M"] = Given(limit_bytes, f"catalogue {placed.device.name}")
    inputs["d"] = Given(placed.profile.memory.driver_bytes, f"driver: {placed.profile.memory.source}")
    inputs["u"] = Given(placed.kv_fraction, placed.kv_origin)
    static = placed.backend == "sglang"
    inputs["taken"] = Given(
        bytes_of(_static(placed) if static else _taken(placed)),
        "weights and process" if static else "weights, trial step and process",
    )
    left = "u*(M - d - taken)" if placed.backend == "tensorrt_llm" else "u*(M - d) - taken"
    return line("KV cache", placed.role.name, "bytes", f"max({one}, {left})", inputs)


def _cpu_cache(placed: Placed, lengths: Lengths) -> LedgerLine:
    one, inputs = sequence_bytes(placed, lengths)
    inputs["N"] = Given(sequences_in_flight(placed), "sequences in flight at most")
    inputs["cap"] = Given(CPU_CACHE_BYTES, "cache of an engine on a CPU at most")
    return line("KV cache", placed.role.name, "bytes", f"max({one}, min(N*({one}), cap))", inputs)


@_once
def _taken(placed: Placed) -> Lines:
    """What counts against an engine's share of the device beside its cache."""
    graphs = _graphs(placed) if placed.profile.engine_memory(placed.backend).graphs_inside else []
    return [*_static(placed), *_workspace(placed), *graphs]


@_once
def _static(placed: Placed) -> Lines:
    return [*weights_line(placed), line("engine process", placed.role.name, "bytes", "i + n", _process_inputs(placed))]


def _process_inputs(placed: Placed) -> dict[str, Given]:
    known = placed.profile.engine_memory(placed.backend)
    several = placed.layout.tp * placed.layout.pp * placed.layout.ep > 1
    return {
        "o": Given(known.outside_bytes, f"context, on top of the engine's share: {known.source}"),
        "i": Given(known.inside_bytes, f"context and libraries in the engine's share: {known.source}"),
        "n": Given(known.collective_bytes if several else 0, "buffers of collectives" if several else "one device"),
    }


@_once
def _graphs(placed: Placed) -> Lines:
    if placed.device.is_cpu or not placed.role.engine.cuda_graphs:
        return []
    known = placed.profile.engine_memory(placed.backend)
    sequences = sequences_in_flight(placed)
    sizes = graph_sizes(sequences, limits(placed.backend, placed.device).largest_graph)
    inputs = {
        **model_inputs(placed),
        "y": Given(known.graph_bytes, f"a layer and a size: {known.source}"),
        "z": Given(sizes, f"sizes of batch captured for {sequences:,} sequences"),
    }
    return [line("CUDA graphs", placed.role.name, "bytes", "y*z*L/pp", inputs)]


@_once
def _workspace(placed: Placed) -> Lines:
    """The most that a step takes: a full batch through one layer (hidden states and residuals, and gate, up and their
    product of the feed-forward; of a mixture, of e copies of each token, at most 32,768 tokens at a time, which is
    vLLM's VLLM_FUSED_MOE_CHUNK_SIZE), or sampling for all sequences."""
    known = placed.profile.engine_memory(placed.backend)
    default = limits(placed.backend, placed.device)
    batch, most = placed.role.engine.max_batch_tokens, placed.role.engine.max_sequences
    inputs = {
        **model_inputs(placed),
        "B": Given(batch or default.batch_tokens, "max_batch_tokens" if batch else default.source),
        "S": Given(most or default.sequences, "max_sequences" if most else default.source),
        "s": Given(known.sampler_bytes, f"of a logit while sampling: {known.source}"),
    }
    layer = "B*w*(4*H + 3*F/tp)"
    if placed.model.experts:
        layer = "B*w*4*H + min(B, 32768)*e*w*(max(2*F/tp, H) + F/tp)"
    return [line("engine workspace", placed.role.name, "bytes", f"max({layer}, s*min(S, B)*V)", inputs)]
