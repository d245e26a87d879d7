"""float32 to bfloat16 by the compiled function: rounded to the nearest even, nothing beside it touched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.backends import casting
from flowrl.backends.casting import cast, castable

GUARD = 0x1234
Bits = npt.NDArray[np.uint32]


def _nearest(bits: Bits) -> npt.NDArray[np.uint16]:
    """By arithmetic: of the bfloat16 towards 0 and the one away from it, the nearer; of two as near, the even one."""
    low = (bits >> 16).astype(np.uint32)
    exact, below = _value(bits), _value(low << 16)
    with np.errstate(invalid="ignore"):
        # Beyond the largest, the next one would be 2^128: what rounds there is infinite.
        above = np.where((low & 0x7FFF) == 0x7F7F, np.copysign(2.0**128, exact), _value((low + 1) << 16))
        up, down = np.abs(above - exact), np.abs(exact - below)
    is_up = (up < down) | ((up == down) & (low % 2 == 1))
    return np.where(np.isinf(exact), low, low + is_up).astype(np.uint16)


def _value(bits: Bits) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # of numbers that are none
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def _cast(bits: Bits, shift: int = 0, threads: int = 1, parts: int = 1) -> npt.NDArray[np.uint16]:
    """Through memory that begins `shift` places from an aligned one, with guards at both ends."""
    held = np.full(len(bits) + shift + 64, GUARD, dtype=np.uint16)
    to = torch.from_numpy(held.view(np.int16)).view(torch.bfloat16)[shift + 8 : shift + 8 + len(bits)]
    source = torch.from_numpy(bits.view(np.float32).copy())
    borders = [len(bits) * part // parts for part in range(parts + 1)]
    pairs = [(to[a:b], source[a:b]) for a, b in pairwise(borders)]
    cast(pairs, threads)
    assert (held[: shift + 8] == GUARD).all()
    assert (held[shift + 8 + len(bits) :] == GUARD).all()
    return held[shift + 8 : shift + 8 + len(bits)]


def test_a_compiler_is_here() -> None:
    """Else the tests below would only ask torch."""
    assert casting.native() is not None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 15, 31, 32, 33, 64, 1023, 4095, 4096, 4097, 8192 + 37, 13_000]),
    shift=st.integers(0, 40),
    parts=st.integers(1, 5),
)
@example(seed=0, count=4096 * 3, shift=24, parts=1)
def test_every_number_is_rounded_to_the_nearest_even(seed: int, count: int, shift: int, parts: int) -> None:
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 2**32, count, dtype=np.uint32)
    ties = draw.random(count) < 0.3
    bits[ties] = (bits[ties] & 0xFFFF0000) | 0x8000
    found = _cast(bits, shift, parts=parts)
    nan = np.isnan(bits.view(np.float32))
    assert np.array_equal(found[~nan], _nearest(bits)[~nan])
    assert (((found[nan] & 0x7F80) == 0x7F80) & ((found[nan] & 0x7F) != 0)).all()


def test_borders_of_the_format() -> None:
    """Zeros, the smallest, a tie to even each way, the largest that stays finite, the least that does not, infinity."""
    bits = [0, 0x80000000, 1, 0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000, 0xFF7FFFFF, 0x7F800000, 0xFF800000]
    right = [0, 0x8000, 0, 0x3F80, 0x3F82, 0x7F7F, 0x7F80, 0xFF80, 0x7F80, 0xFF80]
    assert _cast(np.asarray(bits, dtype=np.uint32)).tolist() == right


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_work(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "SHARE", 1000)
    source = torch.from_numpy(np.random.default_rng(threads).standard_normal(50_021).astype(np.float32))
    cuts = [0, 7, 3000, 3000, 41_000, 50_021]
    to = torch.zeros(len(source), dtype=torch.bfloat16)
    cast([(to[a:b], source[a:b]) for a, b in pairwise(cuts)], threads)
    assert torch.equal(to, source.to(torch.bfloat16))


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CC", "no-such-compiler")
    casting.native.cache_clear()
    yield
    casting.native.cache_clear()


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_torch_copies() -> None:
    assert casting.native() is None
    bits = np.asarray([0x3F808000, 0x3F818000, 0xC0490FDB], dtype=np.uint32)
    assert _cast(bits).tolist() == [0x3F80, 0x3F82, 0xC049]


def test_a_compiler_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    casting.native.cache_clear()
    assert casting.native() is None
    casting.native.cache_clear()


@pytest.mark.parametrize(
    ("to", "source"),
    [
        (torch.zeros(4), torch.zeros(4)),
        (torch.zeros(4, dtype=torch.float16), torch.zeros(4)),
        (torch.zeros(4, dtype=torch.bfloat16), torch.zeros(8)[::2]),
        (torch.zeros(4, dtype=torch.bfloat16, device="meta"), torch.zeros(4)),
    ],
    ids=["same dtype", "float16", "with gaps", "elsewhere"],
)
def test_what_is_left_to_torch(to: Tensor, source: Tensor) -> None:
    assert not castable(to, source)
