"""Memory of logits: what a loss or log-probs hold per token over the vocabulary, by the way they are made.

Takes a Placed role and inputs with T, the tokens of a micro-batch on this device; gives ledger lines. A model with one
output per token (a scalar head) has next to nothing here.

`whole`: all logits at once, by torch's operations. `kernel`: all at once in float32, with their gradient and nothing
between (flash-attn's Triton cross-entropy, as OpenRLHF calls it). `in_place`: all at once in the dtype of compute, the
gradient written over them and one temporary (the same kernel with inplace_backward, as verl calls it). `chunked`:
those of some tokens at a time, made again in the backward pass. `fused`: some entries of the vocabulary at a time for
all tokens, kept by nobody (Liger's and prime-rl's fused output layers); the last two write the gradient of the head as
they go.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, Inputs, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.shards import Lines, by_tp, trains_adapter

_OF_ALL = "bytes per logit: a float32 copy, the log-softmax and its gradient"
_BY_KERNEL = "bytes per logit: float32 and its gradient"
_IN_PLACE = "bytes per logit: its own, the gradient over it, and a temporary"
_HELD = "bytes per logit: its own, a float32 copy, the log-softmax and three gradients, all held by the caller"


def logits_lines(placed: Placed, inputs: Inputs, *, trains: bool, held: bool = False) -> Lines:
    """`trains`: a backward pass follows. `held`: the caller keeps the logits until then."""
    known, role = placed.profile.training, placed.role.name
    way = placed.role.engine.cross_entropy
    if way == "whole" or placed.model.output_width == 1:
        each = known.held_logit_bytes if held and placed.model.output_width > 1 else known.logit_bytes
        given = {**inputs, "c": Given(each, _HELD if each == known.held_logit_bytes else _OF_ALL)}
        return [line("logits", role, "bytes", f"c*T*V{by_tp(placed)}", given)]
    if way in ("kernel", "in_place"):
        each = Given(known.kernel_logit_bytes, _BY_KERNEL) if way == "kernel" else Given(2, _IN_PLACE)
        formula = "c*T*V" if way == "kernel" else "c*w*T*V"
        return [line("logits", role, "bytes", f"{formula}{by_tp(placed)}", {**inputs, "c": each})]
    given = {
        **inputs,
        "c": Given(known.chunk_logit_bytes, "bytes per logit of a chunk: its own, float32 copy, softmax and gradient"),
        "Tc": Given(known.chunk_tokens, "tokens of a chunk"),
        "Vc": Given(known.fused_columns, "entries of the vocabulary at a time"),
    }
    formula = f"c*min(T, Tc)*V{by_tp(placed)}" if way == "chunked" else f"c*T*min(V{by_tp(placed)}, Vc)"
    lines = [line("logits", role, "bytes", formula, given)]
    if trains and not trains_adapter(placed):
        lines.append(line("gradient of the head", role, "bytes", f"w*V*H{by_tp(placed)}", given))
    return lines
