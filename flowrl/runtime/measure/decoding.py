"""Calls of generators: seconds of a call, of a decode step, of their layers and of their sequences, from small models.

`hf` is measured in this process, vLLM, where it is installed, in one of its own, whose threads it freezes. A step is
what a longer answer takes more than one of a token, over its further tokens. Seconds are fitted to the planner's form
(placement/time/decode.py, generation.py). On a GPU a step takes the larger of its products and L layers' launches, then
its own seconds and those of each sequence. On a CPU all of them add up and sequences move bytes beside their products.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flowrl.runtime.measure.figures import Figure, Times, fit, timed
from flowrl.runtime.measure.machine import NAMES, Machine
from flowrl.runtime.measure.models import VOCABULARY, Small
from flowrl.runtime.measure.ranks import generate, generator, prompts_of

PROMPT = 6
"""Tokens of the prompts."""
STEPS, QUICK_STEPS = 12, 4
SHALLOW, DEEP, SMALL, WIDE = Small(64, 2), Small(64, 6), Small(160, 3), Small(256, 4)
MANY, QUICK_MANY = (64, 256), (128,)
SAMPLING_BYTES = 24.0
"""Of a logit, as the planner counts them apart."""
MOST_SECONDS = 300.0
OF_A_CALL = ("layer_seconds", "micro_batch_seconds", "row_seconds")
"""Of a generator's call, as of a pass that trains: the planner takes a third of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of a batch, and the call that gives its first token."""

    small: Small
    batch: int
    times: Times
    first: Times


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does, as the planner counts it."""

    flops_per_second: float
    memory_bytes_per_second: float
    ridge: float
    """FLOPs in the time of a byte, by the catalogue."""
    traffic: float
    width: int
    """Bytes of a number."""


def decoding(machine: Machine, quick: bool, known: Mapping[str, float]) -> list[Figure]:
    """By `hf`. `known`: figures so far by path; rates of forward passes and of memory are used if they are there."""
    with TemporaryDirectory(prefix="flowrl-measure-") as folder:
        dtype = NAMES[machine.dtypes[0]]
        found = steps_of(Path(folder), "hf", str(machine.device), machine.cores, dtype, machine.wait, quick=quick)
    rates = _rates(machine, known, machine.cores)
    if machine.card.device.is_cpu:
        return together(f"{machine.name}/hf", found, rates, PROMPT + (QUICK_STEPS if quick else STEPS) / 2)
    return figures_of(machine.name, found, rates.flops_per_second)


def decoding_with_vllm(machine: Machine, quick: bool, known: Mapping[str, float]) -> list[Figure]:
    """By vLLM on one core of a CPU. Nothing without it, and on a GPU, where it has not been run."""
    if not machine.card.device.is_cpu or importlib.util.find_spec("vllm") is None:
        return []
    pace, dtype = ("quick" if quick else "full"), NAMES[machine.dtypes[0]]
    command = [sys.executable, "-m", "flowrl.runtime.measure.engine", "vllm", dtype, pace]
    try:
        told = subprocess.run(command, capture_output=True, timeout=MOST_SECONDS, check=True).stdout
        found = json.loads(told.splitlines()[-1])
    except (subprocess.SubprocessError, json.JSONDecodeError, IndexError):
        return []
    steps = [
        Step(Small(hidden, depth), batch, Times(tuple(each)), Times(tuple(first)))
        for hidden, depth, batch, each, first in found["steps"]
    ]
    context = PROMPT + (QUICK_STEPS if quick else STEPS) / 2
    taken = Times(tuple(found["weights"]))
    return [
        *together(f"{machine.name}/vllm", steps, _rates(machine, known, 1), context),
        Figure(
            path=f"device.{machine.name}/vllm.weights_seconds",
            value=max(0.0, taken.median - known.get("fixed.sync_seconds", 0.0)),
            text=f"vllm: {taken.median * 1e3:.3g} ms until a small model's weights are taken up",
            spread=taken.spread,
            repeats=len(taken.seconds),
        ),
    ]


def _rates(machine: Machine, known: Mapping[str, float], cores: int) -> Rates:
    device, name = machine.card.device, f"device.{machine.name}"
    return Rates(
        flops_per_second=known.get(f"{name}.forward", 0.5) * device.bf16_flops_per_second * cores,
        memory_bytes_per_second=known.get(f"{name}.decode", 0.7) * device.memory_bytes_per_second * cores,
        ridge=device.bf16_flops_per_second / device.memory_bytes_per_second,
        traffic=known.get(f"{name}.traffic", 0.0),
        width=machine.dtypes[0].itemsize,
    )


def steps_of(
    folder: Path, backend: str, device: str, threads: int, dtype: str, wait: Any, *, quick: bool
) -> list[Step]:
    """Steps of real ranks, models made in `folder`."""
    steps, span, many = (QUICK_STEPS, 0.15, QUICK_MANY) if quick else (STEPS, 0.5, MANY)
    found: list[Step] = []
    for small in (SHALLOW, DEEP, WIDE) if quick else (SHALLOW, DEEP, SMALL, WIDE):
        rank = generator(small, folder, backend, device, threads, dtype)
        for batch in (1, *many):
            prompts = prompts_of(batch)
            one = timed(lambda r=rank, p=prompts: r.call(generate(1), p), wait, span / 3)
            more = timed(lambda r=rank, p=prompts: r.call(generate(1 + steps), p), wait, span)
            seconds = tuple(max(1e-9, (each - one.median) / steps) for each in more.seconds)
            found.append(Step(small, batch, Times(seconds), one))
        rank.close()
    return found


def figures_of(name: str, steps: Sequence[Step], flops_per_second: float) -> list[Figure]:
    """Of a GPU: the three seconds, from measured steps and the rate of products."""
    alone = [each for each in steps if each.batch == 1]
    (a_layer, a_step), _ = fit([[each.small.layers, 1.0] for each in alone], [each.times.median for each in alone])
    many = [each for each in steps if each.batch > 1]
    more = [max(1e-9, each.times.median - _on_device(each, a_layer, flops_per_second) - a_step) for each in many]
    (a_sequence,), _ = fit([[float(each.batch)] for each in many], more) if more else ([0.0], 0.0)
    missed = [
        abs((_on_device(each, a_layer, flops_per_second) + a_step + a_sequence * each.batch) / each.times.median - 1.0)
        for each in steps
    ]
    spread = max(statistics.median(missed), statistics.median(each.times.spread for each in steps))
    return _of_a_step(name, steps, spread, (a_layer, a_step, a_sequence))


def together(name: str, steps: Sequence[Step], rates: Rates, context: float) -> list[Figure]:
    """Of an engine on a CPU: one fit of all steps, one of all calls. context: mean tokens of a sequence in a step."""
    columns, apart = [], []
    for each in steps:
        small, products = each.small, 2.0 * each.small.parameters * each.batch / rates.flops_per_second
        weights = rates.width * small.parameters / rates.memory_bytes_per_second
        cached = 2.0 * small.layers * small.hidden * rates.width * context + SAMPLING_BYTES * VOCABULARY
        moved = products * rates.ridge * _narrow(small) if products > weights else 0.0
        columns.append([float(small.layers), 1.0, float(each.batch), moved])
        apart.append(max(products, weights) + cached * each.batch / rates.memory_bytes_per_second)
    (*seconds, traffic), left = fit(columns, [each.times.median for each in steps], apart)
    spread = max(left, statistics.median(each.times.spread for each in steps))
    text = f"{_engine(name)}: {traffic:.3g} of a product's bytes moved beside it in a decode step"
    return [
        *_of_a_step(name, steps, spread, (seconds[0], seconds[1], seconds[2])),
        Figure(path=f"device.{name}.decode_traffic", value=traffic, text=text, spread=spread, repeats=_repeats(steps)),
        *_of_calls(name, steps, rates),
    ]


def _of_calls(name: str, steps: Sequence[Step], rates: Rates) -> list[Figure]:
    """What a call takes beside the products of its prompts: L·l + o + N·s. Three times that, as the planner takes a
    third."""
    prefill = [
        2.0 * each.small.parameters * tokens / rates.flops_per_second
        * (1.0 + rates.traffic * rates.ridge * (1.0 / tokens + _narrow(each.small)))
        for each in steps for tokens in (each.batch * PROMPT,)
    ]  # fmt: skip
    columns = [[float(each.small.layers), 1.0, float(each.batch)] for each in steps]
    found, left = fit(columns, [each.first.median for each in steps], prefill)
    a_layer, a_call, a_row = (3.0 * value for value in found)
    text = f"{_engine(name)}: {found[0] * 1e3:.3g} ms a layer, {found[1] * 1e3:.3g} ms a call, {found[2] * 1e6:.3g} µs"
    spread = max(left, statistics.median(each.first.spread for each in steps))
    return [
        Figure(path=f"device.{name}.{key}", value=value, text=f"{text} a row", spread=spread, repeats=_repeats(steps))
        for key, value in zip(OF_A_CALL, (a_layer, a_call, a_row), strict=True)
    ]


def _of_a_step(name: str, steps: Sequence[Step], spread: float, seconds: tuple[float, float, float]) -> list[Figure]:
    a_layer, a_step, a_sequence = seconds
    engine = _engine(name)
    said = (
        ("eager_layer_seconds", a_layer, f"{engine}: {a_layer * 1e3:.3g} ms a layer of a decode step"),
        ("decode_step_seconds", a_step, f"{engine}: {a_step * 1e3:.3g} ms a decode step beside its layers"),
        ("decode_sequence_seconds", a_sequence, f"{engine}: {a_sequence * 1e6:.3g} µs a sequence in a decode step"),
    )
    return [
        Figure(path=f"device.{name}.{key}", value=value, text=text, spread=spread, repeats=_repeats(steps))
        for key, value, text in said
    ]


def _engine(name: str) -> str:
    return name.partition("/")[2] or "hf"


def _narrow(small: Small) -> float:
    return 1.0 / small.hidden + 1.0 / small.ffn


def _repeats(steps: Sequence[Step]) -> int:
    return sum(len(each.times.seconds) for each in steps)


def _on_device(step: Step, a_layer: float, flops_per_second: float) -> float:
    return max(2.0 * step.small.parameters * step.batch / flops_per_second, a_layer * step.small.layers)
