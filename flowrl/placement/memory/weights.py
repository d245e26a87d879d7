"""Weights and cached tokens of a generator on one device, as its layout and its number formats cut them.

Takes a Placed role; gives ledger lines and formulas with inputs. Knows neither shares of devices nor phases.
"""

from __future__ import annotations

from flowrl.machine.engines import limits
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.workload import Lengths
from flowrl.placement.memory.training import Lines


def weights_line(placed: Placed) -> Lines:
    """The model's, and its LoRA adapter's (each device holds it whole).

    tp cuts every matrix, embedding and head by the vocabulary (VocabParallelEmbedding); what it cannot cut is on
    each device (D). ep cuts experts whole over all tp ranks of several engines. pp cuts layers; the first stage has the
    embedding, the last the head (r is the larger). fp8 leaves embedding, head and norms as they are.
    """
    inputs, role, shape = _cut_inputs(placed), placed.role.name, placed.model
    adapter = [line("adapter", role, "bytes", "w*A", inputs)] if placed.adapter else []
    narrow = has_narrow_weights(placed)
    if placed.layout.tp * placed.layout.pp * placed.layout.ep == 1:
        formula = "x*(P - R) + w*R" if narrow else "w*P"
        return [line("weights", role, "bytes", formula, inputs), *adapter]
    layers = "(P - R - X)/(tp*pp) + X/(max(tp, ep)*pp)" if shape.experts else "(P - R)/(tp*pp)"
    formula = f"{'x' if narrow else 'w'}*({layers} + D/pp) + w*r/tp"
    return [line("weights", role, "bytes", formula, inputs), *adapter]


def has_narrow_weights(placed: Placed) -> bool:
    """Whether its matrices are in fp8, which engines alone do."""
    return placed.backend in ENGINES and placed.role.engine.weights_dtype == "fp8"


def _cut_inputs(placed: Placed) -> dict[str, Given]:
    shape, tp, pp = placed.model, placed.layout.tp, placed.layout.pp
    root = shape.root_parameters if pp == 1 else max(shape.embedding_parameters, shape.head_parameters)
    return {
        **model_inputs(placed),
        "ep": Given(placed.layout.ep, placed.layout_origin),
        "X": Given(shape.expert_parameters_total, f"routed experts: {shape.origin}"),
        "D": Given(repeated_parameters(shape, tp), f"beyond an equal part, which tp {tp} repeats: {shape.origin}"),
        "r": Given(root, "embedding or head of a stage" if pp > 1 else f"embedding, head, last norm: {shape.origin}"),
        "x": Given(1, "engine.weights_dtype fp8"),
    }


def repeated_parameters(shape: ModelShape, tp: int) -> int:
    """Of all layers, what each of `tp` devices holds beyond an equal part: norms, routers, down-projections to latents,
    and key-value heads where there are more devices than heads."""
    whole = shape.layers * shape.layer_norms * shape.norm_parameters
    whole += shape.sparse_layers * shape.experts * (shape.hidden + shape.router_bias)
    if shape.latent is not None:
        whole += shape.attention_layers * (shape.latent.q_rank + shape.latent.cached) * shape.hidden
    copied = 0
    if shape.latent is None and tp > shape.kv_heads:
        copied = shape.attention_layers * 2 * shape.hidden * (shape.head_dim - shape.kv_width // tp)
    return whole - whole // tp + copied


def sequence_bytes(placed: Placed, lengths: Lengths) -> tuple[str, dict[str, Given]]:
    """The cache of one longest sequence: its formula and inputs. t tokens · b of a block · K bytes of a token here, or
    Kf of layers with full attention, Kw of windowed ones that keep W, Ks of recurrent layers."""
    shape, tp, pp = placed.model, placed.layout.tp, placed.layout.pp
    is_engine = placed.backend in ENGINES
    each = 1 if is_engine and placed.role.engine.kv_dtype == "fp8" else placed.dtype_bytes
    said = placed.role.engine.max_model_tokens if is_engine else None
    origin = f"prompt {lengths.prompt_most.origin}; response {lengths.response_most.origin}"
    block = limits(placed.backend, placed.device).block_tokens if is_engine else 1
    stages = f" / pp {pp}" if pp > 1 else ""
    inputs = {
        **model_inputs(placed),
        "t": Given(said or lengths.most, "max_model_tokens" if said else origin),
        "b": Given(block, "tokens of a block"),
    }
    if not shape.windowed_layers and shape.linear is None:
        how = shape.cache_words(each, tp) + stages
        return "ceil(t/b)*b*K", inputs | {"K": Given(shape.kv_bytes_per_token(each, tp) / pp, how)}
    layer = shape.layer_cache_bytes(each, tp)
    inputs |= {
        "Kf": Given(shape.full_layers * layer / pp, f"{shape.full_layers} full layers * {layer:,} bytes{stages}"),
        "Kw": Given(shape.windowed_layers * layer / pp, f"{shape.windowed_layers} windowed layers{stages}"),
        "W": Given(shape.window, f"window: {shape.origin}"),
        "Ks": Given(shape.state_bytes(placed.dtype_bytes, tp) / pp, f"states of recurrent layers{stages}"),
    }
    return "ceil(t/b)*b*Kf + min(t, W)*Kw + Ks", inputs
