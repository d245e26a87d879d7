"""Memory of a trainer or scorer on Megatron Core with its distributed optimizer, on one stage of a pipeline.

Takes a Placed role and a stage; gives ledger lines. Bytes per parameter are those of docs/source/api-guide/
dist_optimizer.md: 6 + 12 / dp with bf16 weights and fp32 gradients. Attention, dense feed-forwards, embedding and head
are cut by tp; routed experts by ep, and by `engine.expert_tensor_parallel` ranks, by default tp while ep and tp
together have that many (Megatron's default expert_tensor_parallel_size; else experts are whole). Optimizer states are
cut over all ranks that hold the same weights: dp and cp, of experts what is left of tp, cp and dp. Activations:
activations.py, and kept for as many micro-batches as a stage has in flight in 1F1B (Narayanan et al. 2021,
arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.placement.cost.ledger import Given, Inputs, are_whole, bytes_of, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.activations import kept_input, layer_activations, mean_activations
from flowrl.placement.memory.logits import logits_lines
from flowrl.placement.memory.shards import Lines, in_eight_bits, is_trained, rest, some, training_inputs, trains_adapter
from flowrl.placement.memory.stages import stage_of
from flowrl.plan.plan import LedgerLine


def inputs_of(placed: Placed, stage: int) -> Mapping[str, Given]:
    """Ps parameters of the stage that are no routed experts · Xs those that are · Ls layers · et what cuts an expert
    beside ep."""
    found = placed.names.get(stage)
    if found is None:
        found = placed.names[stage] = _inputs_of(placed, stage)
    return found


def _inputs_of(placed: Placed, stage: int) -> Mapping[str, Given]:
    here, layout = stage_of(placed.model, placed.layout.pp, stage), placed.layout
    asked = placed.role.engine.expert_tensor_parallel
    both = layout.ep * layout.tp <= layout.dp * layout.cp * layout.tp
    size = min(asked, layout.tp) if asked is not None else layout.tp if both else 1
    how = f"expert tensor parallel, as tp {layout.tp}" if both else "experts whole: ep leaves no ranks for tp"
    how = "engine.expert_tensor_parallel" if asked is not None else how
    return {
        **training_inputs(placed),
        "Ps": Given(here.others, here.words),
        "Xs": Given(here.experts, f"routed experts, {here.words}"),
        "Ls": Given(here.layers, here.words),
        "et": Given(size, how),
    }


def weights(placed: Placed) -> str:
    """Parameters on a device."""
    return "(Ps/tp + Xs/(ep*et))" if placed.model.experts else "Ps/tp"


def states(placed: Placed) -> str:
    """Parameters whose optimizer states are on a device."""
    ranks = "S" if placed.layout.cp > 1 or placed.role.engine.shard_devices else "dp"
    if not placed.model.experts:
        return f"Ps/(tp*{ranks})"
    return f"(Ps/(tp*{ranks}) + Xs/max(ep*et, tp*{ranks}))"


def state(placed: Placed, stage: int) -> Lines:
    """Between ops. Compute in float32 has no second copy of the weights."""
    inputs, role = inputs_of(placed, stage), placed.role.name
    if not is_trained(placed):
        return [line("weights", role, "bytes", f"w*{weights(placed)}", inputs)]
    if trains_adapter(placed):
        each = "A/(tp*pp)"
        return some(
            [
                line("weights", role, "bytes", f"w*{weights(placed)} + w*{each}", inputs),
                line("gradients", role, "bytes", f"g*{each}", inputs),
                line("adapter master weights", role, "bytes", f"{rest(placed)}t*{each}/S", inputs),
                line("adapter optimizer states", role, "bytes", f"{rest(placed)}o*{each}/S", inputs),
            ]
        )
    lines = [
        line("weights", role, "bytes", f"w*{weights(placed)}", inputs),
        line("gradients", role, "bytes", f"g*{weights(placed)}", inputs),
        line("optimizer states", role, "bytes", f"{rest(placed)}o*{states(placed)}", inputs),
    ]
    if placed.dtype_bytes < 4:
        lines.insert(2, line("master weights", role, "bytes", f"{rest(placed)}t*{states(placed)}", inputs))
    return some(lines)


def forward(placed: Placed, tokens: Given, stage: int) -> list[Lines]:
    """Moments without gradients."""
    inputs = {**inputs_of(placed, stage), "a": layer_activations(placed), "T": tokens}
    found = [[line("layer work", placed.role.name, "bytes", "T*a", inputs), *_eight_bits(placed, inputs)]]
    if stage == placed.layout.pp - 1:
        found.append([*_eight_bits(placed, inputs), *logits_lines(placed, inputs, trains=False)])
    return found


def update(placed: Placed, tokens: Given, micro_batches: int, stage: int, *, held: bool = False) -> list[Lines]:
    """Moments of forward and backward. The last stage has the logits. Of numbers the largest alone: it is the same for
    any number of data-parallel ranks with as many tokens."""
    if are_whole():
        return _moments(placed, tokens, micro_batches, stage, held=held)
    layout, flight = placed.layout, min(placed.layout.pp - stage, micro_batches)
    cut = (layout.tp, layout.pp, layout.cp, layout.ep, inputs_of(placed, stage)["et"].value)
    key = ("moments", stage, cut, tokens.value, flight, placed.recompute, held)
    found: list[Lines] | None = placed.kept.get(key)
    if found is None:
        moments = _moments(placed, tokens, micro_batches, stage, held=held)
        found = placed.kept[key] = [max(moments, key=bytes_of)]
    return found


def moved(placed: Placed, tokens: Given, micro_batches: int) -> LedgerLine:
    """What the layers of the first stage, which has most micro-batches in flight, keep of them on the host, with
    `activation_offload`."""
    each = kept_input(placed) if placed.recompute == "full" else "am"
    inputs = _update_inputs(placed, tokens, micro_batches, 0)
    formula = f"max(0, f*Ls - Lo)*T*{each}"
    return line("activations on the host", placed.role.name, "bytes", formula, inputs)


def _update_inputs(placed: Placed, tokens: Given, micro_batches: int, stage: int) -> dict[str, Given]:
    pp, known = placed.layout.pp, placed.profile.training
    flight = Given(min(pp - stage, max(1, micro_batches)), f"micro-batches in flight on stage {stage + 1} of {pp}")
    work = known.kept_layer_backward if placed.recompute == "none" else known.layer_backward
    return {
        **inputs_of(placed, stage),
        "a": layer_activations(placed),
        "am": mean_activations(placed),
        "T": tokens,
        "f": flight,
        "b": Given(work, "backward of a layer over what it keeps, traced"),
        "Lo": Given(known.offloaded_layers, "layers on the device while activations move to the host"),
    }


def _moments(placed: Placed, tokens: Given, micro_batches: int, stage: int, *, held: bool) -> list[Lines]:
    pp, inputs = placed.layout.pp, _update_inputs(placed, tokens, micro_batches, stage)
    work = inputs["b"].value
    kept = _activations(placed, inputs)
    key = ("layer work", tokens, work, are_whole())
    working = placed.lines.get(key)
    if working is None:
        working = placed.lines[key] = [line("layer work", placed.role.name, "bytes", "b*T*a", inputs)]
    eight = _eight_bits(placed, inputs)
    found = [[kept, *working, *eight]]
    if stage == pp - 1:
        found.append([kept, *eight, *logits_lines(placed, inputs, trains=True, held=held)])
    return found


def _eight_bits(placed: Placed, inputs: Inputs) -> Lines:
    """Copies of the weights of layers that all micro-batches of an op use."""
    if not in_eight_bits(placed):
        return []
    experts = " + Xs/(ep*et)" if placed.model.experts else ""
    formula = f"2*(Ls*(Lp - Xl)/tp{experts})"
    return [line("8-bit weights", placed.role.name, "bytes", formula, inputs)]


def _activations(placed: Placed, inputs: Inputs) -> LedgerLine:
    count = "min(f*Ls, Lo)" if placed.role.engine.activation_offload else "f*Ls"
    each = kept_input(placed) if placed.recompute == "full" else "am"
    return line("activations", placed.role.name, "bytes", f"{count}*T*{each}", inputs)
