"""A search makes millions of small values and hardly a circle among them: Python need not look for any while it lasts.

What nobody refers to is freed at once in any case; circles wait until the search is done. Knows nothing of placement.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def left_for_later() -> Generator[None]:
    """Collection of circles is off inside, and afterwards as it was before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
