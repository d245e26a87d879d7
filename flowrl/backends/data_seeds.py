"""Numbered prompts (`data.NAME: {seeds: N}`): N prompts without text, each a seed for an environment to begin from.

The order is that of any data set: position p is the p % N-th place of epoch p // N, shuffled anew each epoch. A
prompt's seed is made of the data set's name and its number alone: the same in every epoch and every run, and other ones
for a set of another name, so that `val` holds nothing that `train` has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import RankSetup
from flowrl.backends.seeds import permutation, sample_seed
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import DataParams

SEED_BITS = 31
"""What every library takes for a seed."""


class Numbered:
    """One data set."""

    def __init__(self, setup: RankSetup) -> None:
        params = setup.ops[0].params if len(setup.ops) == 1 else None
        if not isinstance(params, DataParams) or params.seeds is None:
            raise InternalError(f"data role `{setup.role.name}` has no numbered prompts")
        self._name, self._seed = setup.ops[0].id, setup.seed
        self._shuffled = params.order == "shuffle"
        self.size = params.seeds
        self._orders: dict[int, IntArray] = {}

    def rows(self, start: int, count: int | None) -> Batch:
        """Prompt rows with ids start, …, start + count - 1; None: `size` of them. `prompt_id`, int64 [rows], is the
        prompt's seed."""
        ids = np.arange(start, start + (self.size if count is None else count), dtype=np.int64)
        seeds = [sample_seed(0, self._name, self._number(position)) >> (63 - SEED_BITS) for position in ids.tolist()]
        return Batch(ids, ids, {"prompt_id": np.asarray(seeds, dtype=np.int64)})

    def close(self) -> None:
        """Nothing to end."""

    def _number(self, position: int) -> int:
        epoch, place = divmod(position, self.size)
        if not self._shuffled:
            return place
        if epoch not in self._orders:
            # A step touches two epochs at most where they meet; older ones never come back.
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = permutation(self._seed, self._name, epoch, self.size)
        return int(self._orders[epoch][place])


def data_rank(setup: RankSetup) -> Any:
    """The rank of a data role: numbered prompts, or rows of a source."""
    params = setup.ops[0].params if setup.ops else None
    if isinstance(params, DataParams) and params.seeds is not None:
        return Numbered(setup)
    from flowrl.backends.data import Data

    return Data(setup)
