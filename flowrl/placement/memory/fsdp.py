"""Memory of a trainer or scorer on FSDP2: sharded states, gathered layers, and the moments that can be a peak.

Takes a Placed role and inputs; gives ledger lines. The formulas were read off traces of torch's FSDPMemTracker on
Qwen2, Qwen3 and Llama models (the tables lie in tests/placement) with master weights in float32, compute in bfloat16
and every layer gathered in turn. The root group (embedding, head, last norm) stays gathered through forward and
backward. zero_stage 3 frees a layer after its forward, 2 keeps all gathered (reshard_after_forward=False), 1 keeps
whole gradients too (no reduction before the last micro-batch).
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, Inputs, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.activations import kept_input, layer_activations, mean_activations
from flowrl.placement.memory.logits import logits_lines
from flowrl.placement.memory.shards import (
    Lines,
    by_tp,
    cut,
    in_eight_bits,
    is_trained,
    layer,
    layers,
    rest,
    some,
    training_inputs,
    trains_adapter,
    zero_stage,
)
from flowrl.plan.plan import LedgerLine


def state(placed: Placed) -> Lines:
    """Between ops."""
    inputs, role, by = training_inputs(placed), placed.role.name, cut(placed)
    if placed.role.engine.parameter_offload:
        return []
    if not is_trained(placed):
        return [line("weights", role, "bytes", f"m*P/{by}", inputs)]
    if trains_adapter(placed):
        return some(
            [
                line("weights", role, "bytes", f"m*P/{by}", inputs),
                line("adapter master weights", role, "bytes", f"t*A/{by}", inputs),
                line("adapter optimizer states", role, "bytes", f"{rest(placed)}o*A/{by}", inputs),
            ]
        )
    return some(
        [
            line("master weights", role, "bytes", f"m*P/{by}", inputs),
            line("optimizer states", role, "bytes", f"{rest(placed)}o*P/{by}", inputs),
        ]
    )


def forward(placed: Placed, tokens: Given) -> list[Lines]:
    """Moments without gradients: one layer's work at a time, then the logits."""
    inputs = {**training_inputs(placed), "a": layer_activations(placed), "T": tokens}
    gathered = _gathered(placed, inputs)
    root = _of(placed, inputs, "root group", f"w*R{by_tp(placed)}")
    return [
        [root, *gathered, _of(placed, inputs, "layer work", "T*a")],
        [root, *(gathered if zero_stage(placed) < 3 else []), *logits_lines(placed, inputs, trains=False)],
    ]


def update_inputs(placed: Placed, tokens: Given) -> dict[str, Given]:
    """The names in the formulas of an update with micro-batches of `tokens` on this device."""
    known = placed.profile.training
    work, turning = backward_work(placed)
    return {
        **training_inputs(placed),
        "a": layer_activations(placed),
        "am": mean_activations(placed),
        "T": tokens,
        "b": work,
        "d": turning,
        "Lo": Given(known.offloaded_layers, "layers on the device while activations move to the host"),
    }


def backward_work(placed: Placed) -> tuple[Given, Given]:
    """What the backward pass of a layer holds, and that of the last layer, in units of what a layer keeps."""
    known, keeps = placed.profile.training, placed.recompute == "none"
    told = "backward of a layer over what it keeps, traced"
    work = Given(known.kept_layer_backward if keeps else known.layer_backward, told)
    return work, Given(known.kept_turning if keeps else known.turning, f"{told} at the last layer")


def kept(placed: Placed, count: str) -> str:
    """Bytes that `count` layers keep of a micro-batch between forward and backward."""
    here = f"min({count}, Lo)" if placed.role.engine.activation_offload else count
    return f"{here}*T*{kept_input(placed) if placed.recompute == 'full' else 'am'}"


def moved(placed: Placed, tokens: Given) -> LedgerLine:
    """What layers keep of a micro-batch on the host, with `activation_offload`."""
    each = kept_input(placed) if placed.recompute == "full" else "am"
    return _of(placed, update_inputs(placed, tokens), "activations on the host", f"max(0, L - Lo)*T*{each}")


def moments(placed: Placed, inputs: Inputs, *, accumulates: bool, held: bool = False) -> list[Lines]:
    """Those that can be the peak of an update: the loss, the turn into the last layer's backward, the backward of the
    last and of the first layers, the root's reduce-scatter, the optimizer's step. Going back, activations are freed and
    sharded gradients gather."""
    tp, one = by_tp(placed), layer(placed)

    def of(what: str, formula: str) -> LedgerLine:
        return _of(placed, inputs, what, formula)

    def grown(parameters: str) -> Lines:
        """Gradients that are there when those of `parameters` are; of all once there was a micro-batch before."""
        return some([of("gradients", _gradients(placed, "P" if accumulates else parameters))])

    root, gathered, before = of("root group", f"w*R{tp}"), _gathered(placed, inputs), grown("0*P")
    pair = [of("gathered layers", f"2*w*{one}")]
    last = "L" if placed.recompute == "full" else "(L - 1)"
    whole = gathered if zero_stage(placed) < 3 else []
    head = [] if trains_adapter(placed) else [of("gradient of the head", f"w*V*H{tp}")]

    def in_layer(count: str, layers_here: Lines) -> Lines:
        return [
            root,
            *layers_here,
            *head,
            of("layer gradients", _layer_gradients(placed)),
            of("activations", kept(placed, count)),
            of("layer work", "b*T*a"),
        ]

    ends = of("activations", f"{kept(placed, 'L')} + T*((4 + 2*w)*H + 4)")
    found = [
        [*before, root, *whole, ends, *logits_lines(placed, inputs, trains=True, held=held)],
        [*before, root, *gathered, *head, of("activations", kept(placed, "L")), of("layer work", "d*T*a")],
        [*grown("Lp"), *in_layer(last, gathered)],
        [*grown("max(0, L - 2)*Lp"), *in_layer("2", pair)],
    ]
    if not trains_adapter(placed):
        found.append([*grown("(P - R)"), of("root gradients", f"w*R{tp}"), of("reduce-scatter input", f"g*R{tp}")])
    return found


def step(placed: Placed) -> Lines:
    """While the optimizer steps: gradients, and as many temporaries as one fused pass over all tensors makes (torch's
    `foreach` AdamW)."""
    inputs, numbers = training_inputs(placed), "A" if trains_adapter(placed) else "P"
    lines = [_of(placed, inputs, "gradients", _gradients(placed, "P"))]
    if placed.role.optimizer is None or placed.role.optimizer.name != "sgd":
        on_device = f"{rest(placed)}t*{numbers}/{cut(placed)}"
        lines.append(_of(placed, inputs, "optimizer temporaries", on_device))
    return [] if placed.role.engine.parameter_offload else some(lines)


def _of(placed: Placed, inputs: Inputs, what: str, formula: str) -> LedgerLine:
    return line(what, placed.role.name, "bytes", formula, inputs)


def _gathered(placed: Placed, inputs: Inputs) -> Lines:
    """Two layers, this one and the next; at stages 1 and 2 all, from the forward pass on. What comes from the host is
    there once more as it was kept."""
    formula = f"2*w*{layer(placed)}" if zero_stage(placed) == 3 else f"w*{layers(placed)}"
    lines = [_of(placed, inputs, "gathered layers", formula)]
    if in_eight_bits(placed):
        lines.append(_of(placed, inputs, "8-bit weights", f"2*{layer(placed)}"))
    if placed.role.engine.parameter_offload:
        lines.append(_of(placed, inputs, "shards from the host", f"2*m*Lp/{cut(placed)}"))
    return lines


def _gradients(placed: Placed, parameters: str) -> str:
    """FSDP2 keeps a gradient as its parameter is kept; an adapter's alone if the base is frozen."""
    if placed.role.engine.parameter_offload:
        return "0*P"
    if trains_adapter(placed):
        return f"t*A/{cut(placed)}"
    return f"g*({parameters}){by_tp(placed)}" if zero_stage(placed) == 1 else f"t*{parameters}/{cut(placed)}"


def _layer_gradients(placed: Placed) -> str:
    """Of a layer: the model's own, and the inputs of a reduce-scatter that is under way."""
    return "(w + g)*A/L" if trains_adapter(placed) else f"(w + g)*{layer(placed)}"
