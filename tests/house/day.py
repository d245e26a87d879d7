"""The seed of the day for tests that try something else every day. Its runs are repeated by naming it."""

from __future__ import annotations

import os
from datetime import UTC, datetime

VARIABLE = "FLOWRL_FUZZ_SEED"


def fuzz_seed() -> int:
    """Of today (UTC) as a number such as 20260314; `FLOWRL_FUZZ_SEED` names another."""
    return int(os.environ.get(VARIABLE) or datetime.now(UTC).strftime("%Y%m%d"))
