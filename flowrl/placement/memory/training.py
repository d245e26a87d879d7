"""Memory of a trainer or a scorer on one device: FSDP2, Megatron Core and a plain copy, resident and while an op runs.

Takes a Placed role and the tokens of a micro-batch; gives ledger lines. The peak of an op is the largest of a few
moments; only the lines of that moment are kept, so they add up.

FSDP2 formulas were read off traces of torch's FSDPMemTracker on Qwen2, Qwen3 and Llama models (the tables lie in
tests/placement) with master weights in float32, compute in bfloat16 and every layer gathered in turn; no GPU was
compared. The root group (embedding, head, last norm) stays gathered through forward and backward. Megatron's bytes per
parameter are those of its distributed optimizer (docs/source/api-guide/dist_optimizer.md: 6 + 12 / dp with bf16 weights
and fp32 gradients).
"""

from __future__ import annotations

from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, Inputs, bytes_of, evaluate, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.memory.adapter import adapter_moment, adapter_state
from flowrl.plan.plan import LedgerLine

LOGIT_BYTES = 12
"""Of one logit in log-prob and loss: the model's own, a float32 copy, the log-softmax and its gradient."""
RECOMPUTED_LAYER_WORK = 1.55
LAYER_WORK = 0.75
"""Backward of one layer needs this many times the activations that it keeps, on top of them if it kept them. Traced:
1.39 to 1.53 with recomputation, 0.69 without."""
TURNING_WORK = 1.5
"""The same at the last layer, before any gradient is reduced. Traced: 1.0 to 1.48."""

Lines = list[LedgerLine]


def layer_activation_formula(shape: ModelShape) -> str:
    """Bytes that one decoder layer keeps for its backward pass, per token, without recomputation.

    Two RMS norms (a float32 copy of the input, the normalised and the scaled output, 4 bytes of inverse root) are
    8·H + 4·w·H + 8; queries and the attention's output 2·w·q; keys and values 2·w·k; log-sum-exp of flash attention
    4·n; gate, up, their activation and product 4·w·F. Qwen3's norms of queries and keys add (4 + w)·(q + k). A mixture
    keeps e experts' feed-forwards, e gathered inputs and outputs, and float32 scores of its router (own estimate). A
    denoiser's feed-forward has no gate (2·w·F), and its norms are modulated (2·w·H more; own estimate).
    """
    norms = " + (4 + w)*(q + k)" if shape.qk_norm else ""
    if isinstance(shape, DenoiserShape):
        return f"8*H + 6*w*H + 2*w*q + 2*w*k + 2*w*F + 4*n + 8{norms}"
    if shape.experts:
        return f"8*H + 4*w*H + 2*w*q + 2*w*k + 4*n + 8 + e*(4*w*F + 2*w*H) + 8*E{norms}"
    return f"8*H + 4*w*H + 2*w*q + 2*w*k + 4*w*F + 4*n + 8{norms}"


def layer_activations(placed: Placed) -> Given:
    """Bytes that one layer keeps per token, with the formula as origin."""
    formula = layer_activation_formula(placed.model)
    values = {name: given.value for name, given in model_inputs(placed).items()}
    return Given(evaluate(formula, values), f"per token and layer: {formula}")


def _with_tokens(placed: Placed, tokens: Given) -> dict[str, Given]:
    return {**model_inputs(placed), "a": layer_activations(placed), "T": tokens}


def update_inputs(placed: Placed, tokens: Given) -> dict[str, Given]:
    """The names in the formulas of an update with micro-batches of `tokens`."""
    bytes_per_logit = Given(LOGIT_BYTES, "bytes per logit: its own, a float32 copy, the log-softmax and its gradient")
    recomputes = placed.recompute != "none"
    work = RECOMPUTED_LAYER_WORK if recomputes else LAYER_WORK
    return {
        **_with_tokens(placed, tokens),
        "c": bytes_per_logit,
        "b": Given(work, "backward of a layer over what it keeps, traced"),
        "d": Given(TURNING_WORK, "the same at the last layer, traced"),
    }


def resident_lines(placed: Placed) -> Lines:
    """What the role holds on each device between ops, if it is not offloaded."""
    inputs, role = model_inputs(placed), placed.role.name
    if placed.shared:
        return []
    if placed.role.trainable and placed.adapter:
        return adapter_state(placed, _optimizer_bytes(placed))
    if placed.role.trainable:
        return _trainer_state(placed, inputs)
    if placed.backend == "fsdp":
        return [line("weights", role, "bytes", "w*P/dp", inputs)]
    return [line("weights", role, "bytes", "w*P/(tp*pp)", inputs)]


def _trainer_state(placed: Placed, inputs: Inputs) -> Lines:
    role, moments = placed.role.name, _optimizer_bytes(placed)
    inputs = {**inputs, "o": moments}
    if placed.backend == "megatron":
        lines = [
            line("weights", role, "bytes", "w*P/(tp*pp)", inputs),
            line("gradients", role, "bytes", "4*P/(tp*pp)", inputs),
            line("master weights", role, "bytes", "4*P/(tp*pp*dp)", inputs),
            line("optimizer states", role, "bytes", "o*P/(tp*pp*dp)", inputs),
        ]
    else:
        lines = [
            line("master weights", role, "bytes", "4*P/dp", inputs),
            line("optimizer states", role, "bytes", "o*P/dp", inputs),
        ]
    return [each for each in lines if each.value > 0]


def _optimizer_bytes(placed: Placed) -> Given:
    name = placed.role.optimizer.name if placed.role.optimizer is not None else "adamw"
    return Given(0, "sgd without momentum") if name == "sgd" else Given(8, f"{name}: two float32 moments")


def load_lines(placed: Placed) -> Lines:
    """While the role is loaded: what it holds then, and the largest tensor before it is cut."""
    inputs = {**model_inputs(placed), "B": Given(placed.model.largest_tensor, placed.model.origin)}
    if placed.shared:
        return []
    bytes_each = "4" if placed.role.trainable and not placed.adapter else "w"
    return [
        *resident_lines(placed),
        line("largest tensor, uncut", placed.role.name, "bytes", f"{bytes_each}*B", inputs),
    ]


def export_lines(placed: Placed) -> Lines:
    """While weights are sent: one whole tensor is gathered at a time, in the dtype of compute; an adapter whole."""
    if placed.adapter:
        return [*resident_lines(placed), line("adapter", placed.role.name, "bytes", "w*A", model_inputs(placed))]
    inputs = {**model_inputs(placed), "B": Given(placed.model.largest_tensor, placed.model.origin)}
    return [*resident_lines(placed), line("tensor being sent", placed.role.name, "bytes", "w*B", inputs)]


def forward_lines(placed: Placed, tokens: Given) -> Lines:
    """log_probs, values or score: no gradients, so one layer's work at a time, then the logits."""
    inputs, role = _with_tokens(placed, tokens), placed.role.name
    cut = "/tp" if placed.layout.tp > 1 else ""
    gathered = [] if placed.backend != "fsdp" else [line("root group", role, "bytes", "w*R", inputs)]
    layers = [] if placed.backend != "fsdp" else [line("gathered layers", role, "bytes", "2*w*Lp", inputs)]
    inputs["c"] = Given(LOGIT_BYTES, "bytes per logit: its own, a float32 copy, the log-softmax and a temporary")
    at_layer = [*gathered, *layers, line("layer work", role, "bytes", f"T*a{cut}", inputs)]
    at_logits = [*gathered, line("logits", role, "bytes", f"c*T*V{cut}", inputs)]
    return [*resident_lines(placed), *max(at_layer, at_logits, key=bytes_of)]


def update_lines(placed: Placed, tokens: Given, micro_batches: int, stage: int) -> Lines:
    """The peak of forward and backward of a micro-batch. `stage` is the device's pipeline stage."""
    inputs = update_inputs(placed, tokens)
    if placed.backend == "megatron":
        return [*resident_lines(placed), *_megatron_update(placed, inputs, micro_batches, stage)]
    moments = fsdp_moments(placed, inputs, accumulates=micro_batches > 1)
    if placed.adapter:
        moments = [adapter_moment(placed, moment) for moment in moments]
    return [*resident_lines(placed), *max(moments, key=bytes_of)]


def _kept(placed: Placed) -> str:
    """Bytes per token that a layer keeps: all, its matrix products' outputs, or its input alone."""
    if placed.recompute == "full":
        return "w*H"
    return "(w*(2*H + 2*q + 2*k + 2*F*e))" if placed.recompute == "selective" else "a"


def fsdp_moments(placed: Placed, inputs: Inputs, *, accumulates: bool) -> list[Lines]:
    """The moments that can be the peak: the loss, the turn into the last layer's backward, the backward of the last and
    of the first layers, the root's reduce-scatter. Going back, activations are freed and sharded gradients gather."""
    role, kept = placed.role.name, _kept(placed)

    def of(what: str, formula: str) -> LedgerLine:
        return line(what, role, "bytes", formula, inputs)

    def gradients(formula: str) -> Lines:
        return [of("gradients", "4*P/dp" if accumulates else formula)]

    def in_layer(layers: str) -> Lines:
        return [
            of("root group", "w*R"),
            of("gathered layers", "2*w*Lp"),
            of("layer gradients", "8*Lp"),
            of("activations", f"{layers}*T*{kept}"),
            of("layer work", "b*T*a"),
        ]

    at_loss = [
        of("root group", "w*R"),
        of("activations", f"L*T*{kept} + T*((4 + 2*w)*H + 4)"),
        of("logits", "c*T*V"),
    ]
    at_root = [*gradients("4*(P - R)/dp"), of("root gradients", "w*R"), of("reduce-scatter input", "4*R")]
    turning = [
        of("root group", "w*R"),
        of("gathered layers", "2*w*Lp"),
        of("activations", f"L*T*{kept}"),
        of("layer work", "d*T*a"),
    ]
    last = "L" if placed.recompute == "full" else "(L - 1)"
    before = gradients("") if accumulates else []
    return [
        [*before, *at_loss],
        [*before, *turning],
        [*gradients("4*Lp/dp"), *in_layer(last)],
        [*gradients("4*max(0, L - 2)*Lp/dp"), *in_layer("2")],
        at_root,
    ]


def _megatron_update(placed: Placed, inputs: Inputs, micro_batches: int, stage: int) -> Lines:
    """1F1B keeps pp - stage micro-batches on a stage (Narayanan et al. 2021); with sequence parallel all of a layer's
    activations are cut by tp (Korthikanti et al. 2022). The last stage has the logits."""
    pp, role = placed.layout.pp, placed.role.name
    flight = Given(min(pp - stage, max(1, micro_batches)), f"micro-batches in flight on stage {stage + 1} of {pp}")
    inputs = {**inputs, "m": flight}
    lines = [
        line("activations", role, "bytes", f"m*(L/pp)*T*{_kept(placed)}/tp", inputs),
        line("layer work", role, "bytes", "b*T*a/tp", inputs),
    ]
    logits = line("logits", role, "bytes", "c*T*V/tp", inputs)
    if stage < pp - 1:
        return lines
    return [lines[0], max(lines[1], logits, key=lambda each: each.value)]
