"""How a function comes to life and what it is given: its own process, or this one while a debugger looks at it; columns
as they travel to it.

Takes the setup of a rank and batches; gives what can be called. Who calls it decides what its failures mean.
"""

from __future__ import annotations

import bdb
import sys

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import RankSetup
from flowrl.backends.user_code import BUILTIN_PREFIX
from flowrl.backends.user_process.here import Here
from flowrl.backends.user_process.messages import Packed
from flowrl.backends.user_process.process import Limits, UserProcess, share_of_memory
from flowrl.diag.span import Span

FORMATS = "?bBhHiIlLqQfd"
"""Machine types that memoryview makes Python values of."""


def started(setup: RankSetup, name: str, span: Span | None) -> UserProcess | Here:
    """The function `name` for a rank. Raises FlowError FR0820, FR0821 or FR0828 if it cannot be loaded."""
    if name.startswith(BUILTIN_PREFIX) or is_debugged():
        return Here(name, setup.folder, span)
    return UserProcess(name, setup.folder, span, Limits(share_of_memory(setup.world_size), setup.threads))


def is_debugged() -> bool:
    """Whether a debugger looks at this process: its breakpoints are here, so the function must be too."""
    return "pydevd" in sys.modules or isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb)


def packed(batch: Batch) -> dict[str, Packed]:
    """The columns of a batch as they travel to a function."""
    return {name: _column(column) for name, column in batch.columns.items()}


def _column(column: Column) -> Packed:
    if isinstance(column, tuple):
        return Packed("", values=list(column))
    flat = column.values if isinstance(column, Ragged) else column
    kind = flat.dtype.char
    if flat.ndim > 1 or kind not in FORMATS:
        rows = [row.tolist() for row in column.rows()] if isinstance(column, Ragged) else column.tolist()
        return Packed("", values=rows)
    lengths = column.lengths.astype("int64").tobytes() if isinstance(column, Ragged) else None
    return Packed(kind, flat.tobytes(), lengths)
