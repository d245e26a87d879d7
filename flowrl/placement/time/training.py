"""Seconds of updates and of forward passes on one pool, as ledger lines: products, attention, collectives, optimizer.

Takes a placed role and the tokens of a firing; gives lines that add up. docs/cost/time.md derives each. Knows no graph.

A product of t tokens with a matrix of k x n is slower than the peak by 1 + c·R/w, w = 1/(1/t + 1/k + 1/n) its
arithmetic intensity in FLOPs a byte, R those that the device can do in the time of a byte (Williams et al. 2009, the
roofline), c (`traffic`) how often a layer moves such bytes: once for its product, and for norms, activations and
residuals beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, Inputs, are_whole, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.cost.rates import axis_group, group_of_ranks
from flowrl.placement.time.collectives import exchange_inputs, group_inputs
from flowrl.plan.plan import LedgerLine

Lines = list[LedgerLine]

FLASH_BACKWARD = 2.5
"""FLOPs of attention backward over forward: 5 products for 2, as scores are made anew (Dao 2023, arXiv:2307.08691)."""
LOGIT_BYTES = {"whole": 24, "kernel": 16, "in_place": 8, "chunked": 24, "fused": 8}
"""Memory traffic of one logit in a loss: float32 copies written and read, forward and backward. Half forward alone."""
ADAM_BYTES = {"adamw": 30, "adamw_8bit": 20, "sgd": 14}
"""Read and written of one parameter in a step: gradient, master weight, moments, weight."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one dp rank works on in a firing."""

    tokens: Given
    """Of all its micro-batches, padding included."""
    row: Given
    """Tokens of the row that a token is in, on the average."""
    batches: Given
    rows: Given


def update_lines(placed: Placed, share: Share, rates: Inputs) -> Lines:
    """One firing of an update. 6 FLOPs per parameter and token (Kaplan et al. 2020, arXiv:2001.08361), 8 with full
    recomputation; attention 2 + 5 products, 2 more where it is recomputed (Korthikanti et al. 2022, arXiv:2205.05198);
    pipeline (m + pp - 1)/m (Narayanan et al. 2021, arXiv:2104.04473, 2.2.1)."""
    inputs = _inputs(placed, share, rates)
    full, again = placed.recompute == "full", placed.recompute != "none"
    how = f"per parameter and token, recompute {placed.recompute}"
    passes = (8 if full else 6) - (2 if placed.adapter else 0)  # an adapter's base has no gradients of its weights
    inputs["f"] = Given(passes, f"{how}, frozen base" if placed.adapter else how)
    inputs["g"] = Given(1 + FLASH_BACKWARD + again, f"passes of attention, recompute {placed.recompute}")
    inputs["r"] = Given(3 if full else 2, "passes forward and backward, the recomputed one too")
    inputs["x"] = Given(LOGIT_BYTES[placed.role.engine.cross_entropy], "bytes moved for one logit")
    compute = _compute(placed, inputs)
    return [
        compute,
        *_rank_collectives(placed, inputs, compute),
        *_data_collectives(placed, inputs, compute, update=True),
        _overhead(placed, inputs),
        *_optimizer_step(placed, inputs),
    ]


def forward_lines(placed: Placed, share: Share, rates: Inputs) -> Lines:
    """One firing of log-probs, values or scores: 2 FLOPs per parameter and token."""
    inputs = _inputs(placed, share, rates)
    inputs["f"] = Given(2, "per parameter and token, forward")
    inputs["g"] = Given(1, "passes of attention, forward")
    inputs["r"] = Given(1, "a pass forward")
    inputs["x"] = Given(LOGIT_BYTES[placed.role.engine.cross_entropy] // 2, "bytes moved for one logit")
    inputs["l"] = Given(inputs["l"].value / 3, f"a third: forward alone; {inputs['l'].origin}")
    inputs["o"] = Given(inputs["o"].value / 3, f"a third: forward alone; {inputs['o'].origin}")
    inputs["s"] = Given(inputs["s"].value / 3, f"a third: forward alone; {inputs['s'].origin}")
    compute = _compute(placed, inputs)
    return [
        compute,
        *_rank_collectives(placed, inputs, compute),
        *_data_collectives(placed, inputs, compute, update=False),
        _overhead(placed, inputs),
    ]


def _inputs(placed: Placed, share: Share, rates: Inputs) -> dict[str, Given]:
    """D tokens, m micro-batches, a attention FLOPs of a token, Pd parameters that every token is multiplied with and Pe
    those of its experts, u and v how much slower than the peak their products are, i imbalance."""
    always = placed.names.get("time")
    if always is None:
        always = placed.names["time"] = _layout_inputs(placed)
    attention: Given | None = placed.kept.get(share.row)
    if attention is None:
        attention = placed.kept[share.row] = _attention(placed.model, share.row)
    slow, slow_experts = _slowness(placed, share)
    return {
        **always,
        **rates,
        "D": share.tokens,
        "m": share.batches,
        "N": share.rows,
        "a": attention,
        "u": Given(slow, always["u"].origin),
        "v": Given(slow_experts, always["v"].origin),
    }


def _attention(shape: ModelShape, row: Given) -> Given:
    tokens = max(1.0, float(row.value))
    how = f"attention of a token in a row of {tokens:,.0f}: {row.origin}"
    return Given(shape.causal_flops(tokens) / tokens, how)


def _layout_inputs(placed: Placed) -> Mapping[str, Given]:
    """Those that are the same for all ops; of u and v the origins."""
    shape, layout, achieved, origin = placed.model, placed.layout, placed.rates, placed.profile.origin
    dense, routed = _multiplied(shape)
    return {
        **model_inputs(placed),
        "Pd": Given(dense, shape.origin),
        "Pe": Given(routed, shape.origin),
        "u": Given(1.0, f"products over their peak: 1 + {achieved.traffic:.2g}*R/w ({origin})"),
        "v": Given(1.0, f"products of experts, {origin}"),
        "i": Given(placed.profile.moe.imbalance if layout.ep > 1 else 1.0, f"busiest expert rank, {origin}"),
        "cp": Given(layout.cp, placed.layout_origin),
        "ep": Given(layout.ep, placed.layout_origin),
        "l": Given(achieved.layer_seconds, f"launching a layer ({origin})"),
        "o": Given(achieved.micro_batch_seconds, f"a micro-batch ({origin})"),
        "s": Given(achieved.row_seconds, f"a row ({origin})"),
    }


@lru_cache(maxsize=256)
def _multiplied(shape: ModelShape) -> tuple[int, int]:
    """Parameters that every token is multiplied with, and those of the experts that one token is sent to."""
    routed = shape.sparse_layers * shape.experts_per_token * shape.expert_parameters
    return shape.multiplied_parameters - routed, routed


@lru_cache(maxsize=256)
def _parts(shape: ModelShape) -> tuple[int, int]:
    """Parameters outside routed experts, and of those."""
    return shape.shared_parameters_total, shape.expert_parameters_total


def _slowness(placed: Placed, share: Share) -> tuple[float, float]:
    """1 + c·R/w of the dense products and of those of one expert, whose tokens are those of its ep group. In 8 bits the
    products of layers, not the head's, take the bf16 peak over that of 8 bits instead of 1 (Transformer Engine;
    arXiv:2209.05433); their bytes stay, as what comes in is written anew in 8 bits first."""
    shape, layout, device = placed.model, placed.layout, placed.device
    ridge = device.bf16_flops_per_second / device.memory_bytes_per_second * placed.rates.traffic
    tokens = max(1.0, float(share.tokens.value) / float(share.batches.value) / layout.cp)
    width = shape.dense_ffn or shape.shared_ffn or shape.ffn
    dense = 1.0 + ridge * (1.0 / tokens + 1.0 / shape.hidden + layout.tp / width)
    saved = eight_bit_saving(placed)
    if saved:
        dense -= saved * (1.0 - shape.output_width * shape.hidden / max(1, _multiplied(shape)[0]))
    if not shape.experts:
        return dense, 1.0
    met = max(1.0, tokens / layout.tp * layout.ep * shape.experts_per_token / shape.experts)
    return dense, 1.0 - saved + ridge * (1.0 / met + 1.0 / shape.hidden + 1.0 / shape.ffn)


def eight_bit_saving(placed: Placed) -> float:
    """What of the time of a product at the peak the 8-bit peak of the device saves; 0 where it is not asked for."""
    peak = placed.device.fp8_flops_per_second
    if placed.role.engine.compute_dtype != "fp8" or peak is None or placed.backend == "deepspeed":
        return 0.0
    return 1.0 - placed.device.bf16_flops_per_second / peak


def _compute(placed: Placed, inputs: Inputs) -> LedgerLine:
    """Products and attention on one rank, the float32 logits that its loss reads and writes, and no faster than its
    kernels are launched. A CPU does itself what it launches, so there the one comes after the other."""
    formula = _ON_CPU if placed.device.is_cpu else _COMPUTE
    return line("compute", placed.role.name, "seconds", formula, inputs)


_WORK = "D*(f*(Pd*u + Pe*v*i) + g*a)/(tp*cp*pp*X) + x*D*V/(tp*cp*Y)"
_COMPUTE = f"max({_WORK}, m*L*l/pp)*(m + pp - 1)/m"
_ON_CPU = f"({_WORK} + m*L*l/pp)*(m + pp - 1)/m"


def _overhead(placed: Placed, inputs: Inputs) -> LedgerLine:
    rows = " + N*s" if placed.device.is_cpu else ""
    if not placed.model.experts:
        return line("micro-batches", placed.role.name, "seconds", f"(m + pp - 1)*o{rows}", inputs)
    given = {
        **inputs,
        "Ls": Given(placed.model.sparse_layers, placed.model.origin),
        "y": Given(_waiting(placed, inputs), f"waiting for the tokens of experts in a layer ({placed.profile.origin})"),
    }
    return line("micro-batches", placed.role.name, "seconds", f"(m + pp - 1)*(o + Ls/pp*y){rows}", given)


def _waiting(placed: Placed, inputs: Inputs) -> float:
    """Of a pass forward and backward, a third of it forward alone."""
    whole = placed.profile.moe.layer_seconds * placed.rates.host_seconds
    return whole if inputs["r"].value > 1 else whole / 3


def _rank_collectives(placed: Placed, inputs: Inputs, compute: LedgerLine) -> Lines:
    """Inside one copy of the model. tp: two all-reduces a layer and pass (Megatron-LM, arXiv:1909.08053, 3; with
    sequence parallelism as many bytes in gathers and scatters). cp: Ulysses exchanges queries, keys, values and outputs
    (arXiv:2309.14509); a ring sends keys and values past every rank (arXiv:2310.01889), hidden behind compute. ep: each
    token's copies go to their experts and back (arXiv:2006.16668), and are sorted on both sides."""
    layout, role, lines = placed.layout, placed.role.name, Lines()
    if layout.tp > 1:
        given = {**inputs, **group_inputs("t", axis_group(placed, "tp"))}
        formula = "2*r*L/pp*(m*2*At + 2*(tp - 1)/tp*D/cp*H*w/Zt)"
        lines.append(line("tensor parallel", role, "seconds", formula, given))
    if layout.cp > 1:
        group = axis_group(placed, "cp")
        if placed.backend == "megatron":
            given = {**inputs, **group_inputs("c", group), "c": Given(compute.value, "compute")}
            formula = "max(0, 2*k*w*L/(tp*pp)*r*D*(cp - 1)/cp/Zc - c)"
        else:
            given = {**inputs, **exchange_inputs("c", group)}
            formula = "r*L/pp*(m*4*Ac + (2*q + 2*k)*w*D/cp*(cp - 1)/cp/(tp*Zc))"
        lines.append(line("context parallel", role, "seconds", formula, given))
    if placed.model.experts:
        sparse = Given(placed.model.sparse_layers, placed.model.origin)
        sorting = Given(placed.profile.moe.dispatch, f"bytes over those of its copies ({placed.profile.origin})")
        given = {**inputs, "Ls": sparse, "d": sorting}
        lines.append(line("sorting by expert", role, "seconds", "r*d*Ls/pp*D/(cp*tp)*e*H*w*i/Y", given))
        if layout.ep > 1:
            given |= exchange_inputs("e", axis_group(placed, "ep"))
            formula = "2*r*Ls/pp*(m*Ae + D/(cp*tp)*e*H*w*i*(ep - 1)/ep/Ze)"
            lines.append(line("expert parallel", role, "seconds", formula, given))
    return lines


def _data_collectives(placed: Placed, inputs: Inputs, compute: LedgerLine, *, update: bool) -> Lines:
    """Between copies. With weights cut (ZeRO 3, FSDP) all of them are gathered in every micro-batch, once forward and
    once backward; gradients are reduced once an update (Rajbhandari et al. 2020, arXiv:1910.02054, section 7). What
    compute can't hide is added."""
    layout, engine, role = placed.layout, placed.role.engine, placed.role.name
    ranks = layout.dp * layout.cp
    if ranks < 2:
        return []
    stage, sharded = _stage(placed), min(engine.shard_devices or ranks, ranks)
    between = placed.names.get("between copies")
    if between is None:
        between = placed.names["between copies"] = _between_copies(placed, ranks, sharded)
    given: dict[str, Given] = {**inputs, **between, "c": Given(compute.value, "compute")}
    gathered = "m*2*w*Pg" if update else "m*w*Pg"
    terms = [f"{gathered}*(n - 1)/n/Zs + 2*m*L*As" if stage == 3 else "0"]
    if update:
        terms.append("b*Pt*(n - 1)/n/Zs" + ("" if stage == 3 else " + w*Pt*(n - 1)/n/Zs"))
        if sharded < ranks:
            terms.append("2*(N - 1)/N*b*Pt/n/Zr")
    if terms == ["0"]:
        return []
    formula = f"max(0, {' + '.join(term for term in terms if term != '0')} - h*c)"
    return [line("communication not hidden", role, "seconds", formula, given)]


def _between_copies(placed: Placed, ranks: int, sharded: int) -> Mapping[str, Given]:
    """Of `ranks` ranks with copies or parts of the same weights, `sharded` of which share one copy of the states."""
    layout, engine = placed.layout, placed.role.engine
    shared, experts = _parts(placed.model)
    trained = placed.adapter or shared + experts
    cut = shared + experts / max(1, layout.ep)
    copies = -(-ranks // sharded)
    others = group_inputs("r", group_of_ranks(placed, copies, layout.tp * sharded)) if copies > 1 else {}
    return {
        **group_inputs("s", group_of_ranks(placed, sharded, layout.tp)),
        **others,
        "n": Given(sharded, f"ranks that share one copy of the states: dp {layout.dp} * cp {layout.cp}"),
        "Pg": Given(cut / (layout.tp * layout.pp), "parameters of a rank's part, experts divided by ep"),
        "Pt": Given(min(trained, cut) / (layout.tp * layout.pp), "of them trained"),
        "b": Given(2 if engine.gradient_dtype == "bfloat16" else 4, f"bytes of a gradient, {engine.gradient_dtype}"),
        "h": Given(placed.rates.overlap, f"share of compute that hides it ({placed.profile.origin})"),
        "N": Given(copies, "copies of the states"),
    }


def _stage(placed: Placed) -> int:
    """What of the states data parallelism cuts, as ZeRO counts it; an engine's ranks are whole copies."""
    return placed.role.engine.zero_stage or {"megatron": 1, "fsdp": 3, "deepspeed": 3}.get(placed.backend, 0)


def _optimizer_step(placed: Placed, inputs: Inputs) -> Lines:
    key = ("optimizer", inputs["Y"], are_whole())
    found = placed.lines.get(key)
    if found is None:
        found = placed.lines[key] = _optimizer(placed, inputs)
    return found


def _optimizer(placed: Placed, inputs: Inputs) -> Lines:
    """States are read and written once, on the device or, offloaded, in host memory, to where gradients go and from
    where weights come back (ZeRO-Offload, arXiv:2101.06840)."""
    layout, engine, role = placed.layout, placed.role.engine, placed.role.name
    ranks = layout.dp * layout.cp * layout.tp * layout.pp
    trained = placed.adapter or sum(_parts(placed.model))
    optimizer = placed.role.optimizer
    name = optimizer.name if optimizer is not None else "adamw"
    away = max(engine.optimizer_offload, 1.0 if engine.parameter_offload else 0.0)
    given: dict[str, Given] = {
        **inputs,
        "Po": Given(trained / ranks, f"trained parameters / {ranks} ranks"),
        "z": Given(ADAM_BYTES.get(name, ADAM_BYTES["adamw"]), f"bytes of a parameter in a step of {name}"),
        "away": Given(away, "share of the states in host memory"),
    }
    lines = [line("optimizer step", role, "seconds", "(1 - away)*z*Po/Y", given)]
    if away:
        host = (
            placed.profile.fixed.host_memory * placed.group.host_memory_bytes_per_second / placed.group.devices_per_node
        )
        link = placed.device.host_bytes_per_second * placed.rates.host
        given |= {
            "j": Given(host, f"host memory for one of {placed.group.devices_per_node} ranks ({placed.profile.origin})"),
            "k": Given(link, f"{placed.rates.host:.0%} of catalogue {placed.device.name} host link"),
        }
        lines.append(line("optimizer in host memory", role, "seconds", "away*Po*(z/j + 6/k)", given))
    return lines
