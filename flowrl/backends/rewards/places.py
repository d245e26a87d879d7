"""Process rewards of a function: which places of a row they stand on, and what the function is given.

A reward of a token stands on a token of the row, prompt and observations among them; one of a turn on a turn of the
policy's own, a run of true in `loss_mask` (algos/turns.py).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import Batch
from flowrl.backends.user_code import BUILTIN_PREFIX
from flowrl.graph.signatures import BUILTIN_REWARDS
from flowrl.graph.types import Unit

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Places:
    """Of each row, by its id: the mask of own tokens."""

    masks: dict[int, npt.NDArray[np.bool_]]
    unit: Unit

    @staticmethod
    def of(batch: Batch, unit: Unit) -> Places:
        rows = [np.asarray(row, dtype=np.bool_) for row in batch.ragged("loss_mask").rows()]
        return Places(dict(zip(batch.ids.tolist(), rows, strict=True)), unit)

    def count(self, id: int) -> int:
        """Tokens of the row, or its turns."""
        return len(self.masks[id]) if self.unit is Unit.TOKEN else turns(self.masks[id])

    def zeros(self, id: int) -> Floats:
        return np.zeros(self.count(id), dtype=np.float32)

    def fit(self, id: int, numbers: Floats) -> Floats | None:
        """The numbers at their places: one for each, or of tokens one for each of the policy's own; None for another
        count."""
        if len(numbers) == self.count(id):
            return numbers
        mask = self.masks[id]
        if self.unit is not Unit.TOKEN or len(numbers) != mask.sum():
            return None
        whole = np.zeros(len(mask), dtype=np.float32)
        whole[mask] = numbers
        return whole

    def told(self, id: int) -> str:
        if self.unit is Unit.TURN:
            return f"{self.count(id)} turns"
        return f"{self.count(id)} tokens, {int(self.masks[id].sum())} of them the policy's own"


def turns(mask: npt.NDArray[np.bool_]) -> int:
    """Runs of true."""
    return int(mask[:1].sum() + (mask[1:] & ~mask[:-1]).sum())


def parameters_of(function: str, folder: Path) -> tuple[str, ...] | None:
    """Names of a function's parameters, read and not run; None where it takes any, or does not stand there itself."""
    place, _, name = function.rpartition(":")
    if function.startswith(BUILTIN_PREFIX):
        known = BUILTIN_REWARDS[name]
        return (*known.fields, *known.args, *known.optional_args)
    tree = ast.parse((folder / place).read_text(encoding="utf-8"))
    made = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    if not made or made[-1].args.kwarg is not None:
        return None
    return tuple(each.arg for each in (*made[-1].args.args, *made[-1].args.kwonlyargs))
