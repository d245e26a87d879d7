"""Memory of a trainer or scorer on DeepSpeed ZeRO, stages 1 to 3 (Rajbhandari et al. 2020, arXiv:1910.02054).

Takes a Placed role and inputs; gives ledger lines. Per parameter, with bf16 weights: stage 1 has 2 + 2 + 12 / dp bytes
of weights, gradients and states, stage 2 has 2 + 14 / dp, stage 3 has 16 / dp (their figure 1, K = 12); the optimizer
works on flat float32 partitions, whose gradients are made in float32 when it steps. Gradients are reduced in buckets of
reduce_bucket_size, two of them at stage 2 (overlap_comm). Stage 3 keeps up to stage3_max_live_parameters gathered and
stage3_prefetch_bucket_size ahead; they are DeepSpeed's defaults, in the profile.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, Inputs, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.activations import layer_activations
from flowrl.placement.memory.fsdp import kept, update_inputs
from flowrl.placement.memory.logits import logits_lines
from flowrl.placement.memory.shards import (
    Lines,
    cut,
    is_trained,
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
    sharded = zero_stage(placed) == 3
    whole = line("weights", role, "bytes", f"w*P/{by}" if sharded else "w*P", inputs)
    own = [] if sharded and placed.role.engine.parameter_offload else [whole]
    if not is_trained(placed):
        return own
    numbers, adapter = ("A", "adapter ") if trains_adapter(placed) else ("P", "")
    lines = [
        *own,
        line(f"{adapter}master weights", role, "bytes", f"{rest(placed)}t*{numbers}/{by}", inputs),
        line(f"{adapter}optimizer states", role, "bytes", f"{rest(placed)}o*{numbers}/{by}", inputs),
    ]
    return some(lines)


def forward(placed: Placed, tokens: Given) -> list[Lines]:
    """Moments without gradients."""
    inputs = {**training_inputs(placed), **_buckets(placed), "a": layer_activations(placed), "T": tokens}
    gathered = _gathered(placed, inputs)
    return [
        [*gathered, _of(placed, inputs, "layer work", "T*a")],
        [*gathered, *logits_lines(placed, inputs, trains=False)],
    ]


def update(placed: Placed, tokens: Given, *, accumulates: bool, held: bool = False) -> list[Lines]:
    """Moments: the loss, the backward of the last layer, that of the first, the optimizer's step."""
    inputs = {**update_inputs(placed, tokens), **_buckets(placed)}

    def of(what: str, formula: str) -> LedgerLine:
        return _of(placed, inputs, what, formula)

    gathered, all_of_them = _gathered(placed, inputs), _gradients(placed, inputs)
    before = all_of_them if accumulates else []
    bucket = [of("gradient buckets", _bucket(placed))]
    last = "L" if placed.recompute == "full" else "(L - 1)"
    work = of("layer work", "b*T*a")
    return [
        [
            *before,
            *gathered,
            of("activations", f"{kept(placed, 'L')} + T*((4 + 2*w)*H + 4)"),
            *logits_lines(placed, inputs, trains=True, held=held),
        ],
        [*before, *gathered, *bucket, of("activations", kept(placed, last)), work],
        [*all_of_them, *gathered, *bucket, of("activations", kept(placed, "2")), work],
        [*all_of_them, *_stepping(placed, inputs)],
    ]


def _of(placed: Placed, inputs: Inputs, what: str, formula: str) -> LedgerLine:
    return line(what, placed.role.name, "bytes", formula, inputs)


def _numbers(placed: Placed) -> str:
    return "A" if trains_adapter(placed) else "P"


def _gradients(placed: Placed, inputs: Inputs) -> Lines:
    """In the model's dtype: whole at stage 1, its own part at 2 and 3; on the host with an optimizer that is there."""
    numbers = _numbers(placed)
    if placed.role.engine.optimizer_offload == 1.0 and zero_stage(placed) > 1:
        return []
    formula = f"w*{numbers}" if zero_stage(placed) == 1 else f"w*{numbers}/{cut(placed)}"
    return [_of(placed, inputs, "gradients", formula)]


def _stepping(placed: Placed, inputs: Inputs) -> Lines:
    """The float32 gradient of the partition that the optimizer steps."""
    formula = f"{rest(placed)}4*{_numbers(placed)}/{cut(placed)}"
    return some([_of(placed, inputs, "gradients in float32", formula)])


def _bucket(placed: Placed) -> str:
    copies = "2*" if zero_stage(placed) == 2 else ""
    return f"{copies}w*min({_numbers(placed)}, Bg)"


def _gathered(placed: Placed, inputs: Inputs) -> Lines:
    if zero_stage(placed) < 3:
        return []
    return [_of(placed, inputs, "gathered weights", "w*min(P, max(Bl + Bp, 2*Lp))")]


def _buckets(placed: Placed) -> dict[str, Given]:
    known = placed.profile.training
    return {
        "Bg": Given(known.reduce_bucket, "DeepSpeed's reduce_bucket_size"),
        "Bl": Given(known.live_parameters, "DeepSpeed's stage3_max_live_parameters"),
        "Bp": Given(known.prefetch_bucket, "DeepSpeed's stage3_prefetch_bucket_size"),
    }
