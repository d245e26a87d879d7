"""Training memory that leaves the devices: what offload saves of them, what lies on hosts, and what loading and sending
hold. States and activations by backend are in test_memory_training.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.machine.models import CARDS
from flowrl.placement.cost.ledger import Given, bytes_of
from flowrl.placement.memory.training import (
    activations_on_host,
    export_lines,
    forward_lines,
    host_lines,
    load_lines,
    resident_lines,
    update_lines,
)
from tests.placement.trainers import by_name, peak, trainer

SMALL = CARDS["Qwen/Qwen3-4B"]
BACKENDS = ("fsdp", "deepspeed", "megatron")


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(BACKENDS),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["none", "full"]),
    st.sampled_from([1, 2, 3]),
)
def test_more_offload_never_needs_more_of_a_device(
    backend: str, one: float, other: float, recompute: str, stage: int
) -> None:
    less, more = (
        trainer(SMALL, backend, dp=4, recompute=recompute, zero_stage=stage, optimizer_offload=share)
        for share in sorted((one, other))
    )
    assert peak(more) <= peak(less)
    assert bytes_of(resident_lines(more)) <= bytes_of(resident_lines(less))
    assert bytes_of(host_lines(more)) >= bytes_of(host_lines(less))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_offloaded_weights_and_activations_leave_the_device(backend: str, recompute: str) -> None:
    here = trainer(SMALL, backend, dp=4, recompute=recompute)
    away = trainer(SMALL, backend, dp=4, recompute=recompute, activation_offload=True)
    assert peak(away, 32_768) < peak(here, 32_768)
    if backend != "megatron":
        streamed = trainer(SMALL, backend, dp=4, recompute=recompute, parameter_offload=True)
        assert bytes_of(resident_lines(streamed)) < bytes_of(resident_lines(here))
        assert peak(streamed) < peak(here)
        assert bytes_of(host_lines(streamed)) > 0 == bytes_of(host_lines(here))


@pytest.mark.parametrize(("backend", "pp", "flight"), [("fsdp", 1, 1), ("deepspeed", 1, 1), ("megatron", 4, 3)])
def test_what_leaves_the_device_is_on_the_host(backend: str, pp: int, flight: int) -> None:
    """Of 36 layers 9 are on a stage of 4, which has 3 of 3 micro-batches in flight; 5 layers stay, each with 2 bytes of
    2,560 hidden units a token."""
    away = trainer(SMALL, backend, dp=2, pp=pp, recompute="full", activation_offload=True)
    (line,) = activations_on_host(away, Given(8192, "test"), 3)
    assert line.value == (flight * 36 // pp - 5) * 8192 * 2 * 2560
    assert activations_on_host(trainer(SMALL, backend, dp=2, recompute="full"), Given(8192, "test"), 3) == []


def test_products_in_8_bits_hold_their_weights_twice_more() -> None:
    """A byte by rows and a byte by columns: of the two stages' layers with Megatron, of a layer at a time with FSDP.
    The embedding and the head stay as they are."""
    layers = SMALL.parameters - SMALL.root_parameters
    for stage in (0, 1):
        placed = trainer(SMALL, "megatron", dp=2, tp=2, pp=2, compute_dtype="fp8")
        lines = by_name(update_lines(placed, Given(8192, "test"), 4, stage))
        assert lines["8-bit weights"] == pytest.approx(2 * layers / 4, rel=0.01)
        usual = trainer(SMALL, "megatron", dp=2, tp=2, pp=2)
        assert peak(placed, stage=stage) - peak(usual, stage=stage) == pytest.approx(lines["8-bit weights"], abs=8)
    whole = by_name(forward_lines(trainer(SMALL, dp=4, compute_dtype="fp8"), Given(16, "test")))
    assert whole["8-bit weights"] == pytest.approx(2 * layers / SMALL.layers, rel=0.01)


def test_offloaded_states_lie_whole_on_the_hosts() -> None:
    """DeepSpeed with adam_offload: float32 weights, moments and gradients, 16 bytes a parameter over all ranks."""
    lines = host_lines(trainer(SMALL, "deepspeed", dp=8, optimizer_offload=1.0))
    assert 8 * bytes_of(lines) == pytest.approx(16 * SMALL.parameters, abs=16)


def test_a_broadcast_holds_the_whole_model_while_it_loads() -> None:
    """verl-project/verl issue 1517: a 32B model does not load on 96 GB where ranks read it does."""
    shape = CARDS["Qwen/Qwen2.5-32B"]
    parts, sent = (bytes_of(load_lines(trainer(shape, dp=64, load=way))) for way in ("parts", "broadcast"))
    assert parts < 20e9
    assert sent > 4 * shape.parameters > 96e9


@pytest.mark.parametrize("backend", BACKENDS)
def test_sending_has_one_whole_tensor_more(backend: str) -> None:
    placed = trainer(SMALL, backend, dp=4)
    held = resident_lines(placed)
    assert bytes_of(export_lines(placed, held)) == bytes_of(held) + 2 * SMALL.largest_tensor
