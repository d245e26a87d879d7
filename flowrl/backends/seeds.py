"""Randomness that belongs to a sample: a pure function of (run seed, label, sample id), never of a rank, batch or step.

Takes names and ids, gives seeds and uniforms. Must not know who uses them, so that moving a role cannot move the dice.
The generator is Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): run seed and label
make its 128-bit key, the sample's id stands in the second word of its counter, and draws count up the first word.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_SEED_BITS = 63


def sample_seed(run_seed: int, label: str, sample_id: int) -> int:
    """A seed in [0, 2**63) for engines that sample by themselves. `label` is the op's id."""
    digest = hashlib.blake2b(f"{run_seed}\0{label}\0{sample_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def uniforms(run_seed: int, label: str, sample_id: int, count: int) -> npt.NDArray[np.float64]:
    """`count` float64 in [0, 1) for one sample. A longer draw begins with the shorter one. `label` is the op's id."""
    return _philox(run_seed, label, sample_id).random(count)


def uniform_rows(run_seed: int, label: str, sample_ids: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """`uniforms` of several samples: float64 [samples, count]."""
    rows = np.empty((len(sample_ids), count), dtype=np.float64)
    generator = _philox(run_seed, label, 0)
    start = generator.bit_generator.state
    for row, sample_id in enumerate(sample_ids):
        start["state"]["counter"][1] = sample_id  # moving one counter costs a quarter of a new generator
        generator.bit_generator.state = start
        generator.random(out=rows[row])
    return rows


def permutation(seed: int, label: str, index: int, size: int) -> npt.NDArray[np.int64]:
    """The `index`-th shuffle of 0 … size - 1 under (seed, label): int64 [size]."""
    return _philox(seed, label, index).permutation(size).astype(np.int64)


def _philox(run_seed: int, label: str, sample_id: int) -> np.random.Generator:
    key = hashlib.blake2b(f"{run_seed}\0{label}".encode(), digest_size=16).digest()
    words = np.frombuffer(key, dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words, counter=[0, sample_id, 0, 0]))
