"""Memory of a trainer or scorer on one device, at rest and at work: FSDP2, DeepSpeed ZeRO, Megatron Core, a plain copy.

Takes a Placed role, its stage in a pipeline and the tokens of a micro-batch on the device; gives ledger lines. The peak
of an op is the largest of a few moments; only the lines of that moment are kept, so they add up. Which moments there
are is in the module of each backend; nothing that was measured or fitted stands here but in the profile.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.memory import fsdp, megatron, zero
from flowrl.placement.memory.activations import layer_activations
from flowrl.placement.memory.logits import logits_lines
from flowrl.placement.memory.shards import Lines, is_trained, training_inputs, trains_adapter

__all__ = [
    "Lines",
    "activations_on_host",
    "export_lines",
    "forward_lines",
    "host_lines",
    "layer_activations",
    "load_lines",
    "resident_lines",
    "update_lines",
]


def resident_lines(placed: Placed, stage: int = 0) -> Lines:
    """What the role holds on each device between ops, if it is not offloaded."""
    if placed.shared:
        return []
    match placed.backend:
        case "fsdp":
            return fsdp.state(placed)
        case "deepspeed":
            return zero.state(placed)
        case "megatron":
            return megatron.state(placed, stage)
        case _:
            return [line("weights", placed.role.name, "bytes", "w*P", model_inputs(placed))]


def load_lines(placed: Placed, stage: int = 0, *, resident: Lines | None = None) -> Lines:
    """While the role is loaded: what it holds then, and the largest tensor before it is cut. Where one rank reads all
    and sends them, the whole model is on the device beside the part that stays (torch's set_model_state_dict with
    broadcast_from_rank0; verl-project/verl issue 1517). `resident`: `resident_lines`, if the caller has them."""
    if placed.shared:
        return []
    inputs = training_inputs(placed)
    each = "w" if placed.backend != "fsdp" else "m"
    resident = resident_lines(placed, stage) if resident is None else resident
    if placed.role.engine.load == "broadcast":
        return [*resident, line("whole model, before it is cut", placed.role.name, "bytes", f"{each}*P", inputs)]
    return [*resident, line("largest tensor, uncut", placed.role.name, "bytes", f"{each}*B", inputs)]


def export_lines(placed: Placed, held: Lines) -> Lines:
    """While weights are sent beside what the role has: one whole tensor is gathered at a time, in the dtype of compute;
    an adapter whole."""
    name = placed.role.name
    if placed.adapter:
        return [*held, line("adapter", name, "bytes", "w*A", model_inputs(placed))]
    return [*held, line("tensor being sent", name, "bytes", "w*B", training_inputs(placed))]


def forward_lines(placed: Placed, tokens: Given, stage: int = 0, *, resident: Lines | None = None) -> Lines:
    """log_probs, values or score: no gradients, so one layer's work at a time, then the logits."""
    match placed.backend:
        case "fsdp":
            moments = fsdp.forward(placed, tokens)
        case "deepspeed":
            moments = zero.forward(placed, tokens)
        case "megatron":
            moments = megatron.forward(placed, tokens, stage)
        case _:
            inputs = {**model_inputs(placed), "a": layer_activations(placed), "T": tokens}
            work = [line("layer work", placed.role.name, "bytes", "T*a", inputs)]
            moments = [work, logits_lines(placed, inputs, trains=False)]
    resident = resident_lines(placed, stage) if resident is None else resident
    return [*resident, *max(moments, key=bytes_of)]


def update_lines(
    placed: Placed,
    tokens: Given,
    micro_batches: int,
    stage: int = 0,
    *,
    held: bool = False,
    resident: Lines | None = None,
) -> Lines:
    """The peak of forward and backward of a micro-batch, and of the optimizer's step. `held`: logits stay with the
    caller through the backward pass."""
    resident = resident_lines(placed, stage) if resident is None else resident
    accumulates = micro_batches > 1
    match placed.backend:
        case "megatron":
            moments = megatron.update(placed, tokens, micro_batches, stage, held=held)
        case "deepspeed":
            moments = zero.update(placed, tokens, accumulates=accumulates, held=held)
        case _:
            inputs = fsdp.update_inputs(placed, tokens)
            moments = [*fsdp.moments(placed, inputs, accumulates=accumulates, held=held), fsdp.step(placed)]
    return [*resident, *(max(moments, key=bytes_of) if len(moments) > 1 else moments[0])]


def host_lines(placed: Placed) -> Lines:
    """Of one device, what is always in its host's memory: offloaded weights and states. A share that the flow asks to
    be there is there whether or not the role leaves its device between ops."""
    if placed.shared or placed.device.is_cpu or placed.backend not in ("fsdp", "deepspeed", "megatron"):
        return []
    inputs, name, engine = training_inputs(placed), placed.role.name, placed.role.engine
    numbers = "A" if trains_adapter(placed) else "P"
    ranks = "(tp*pp*S)" if placed.backend == "megatron" else "(tp*S)"
    lines: Lines = []
    if engine.parameter_offload and placed.backend != "megatron":
        each = "m" if placed.backend == "fsdp" else "w"
        lines.append(line("weights on the host", name, "bytes", f"{each}*P/{ranks}", inputs))
        if is_trained(placed) and placed.backend == "fsdp":
            lines.append(line("states and gradients on the host", name, "bytes", f"(o + t)*{numbers}/{ranks}", inputs))
    if engine.optimizer_offload > 0 and is_trained(placed):
        kept = "o" if placed.backend == "fsdp" else "(4 + t + o)"
        lines.append(line("optimizer on the host", name, "bytes", f"u*{kept}*{numbers}/{ranks}", inputs))
    return lines


def activations_on_host(placed: Placed, tokens: Given, micro_batches: int) -> Lines:
    """Of one device, what `activation_offload` keeps of an update in its host's memory. It stays taken: torch hands
    pinned memory out again and gives none back (CachingHostAllocator)."""
    if placed.shared or placed.device.is_cpu or not placed.role.engine.activation_offload:
        return []
    match placed.backend:
        case "fsdp" | "deepspeed":
            found = fsdp.moved(placed, tokens)
        case "megatron":
            found = megatron.moved(placed, tokens, micro_batches)
        case _:
            return []
    return [found] if found.value else []
