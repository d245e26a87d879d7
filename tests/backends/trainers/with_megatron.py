"""Tests of backend `megatron` run where Megatron Core is installed (`make test-megatron`) and are skipped elsewhere."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="Megatron Core is not installed (make test-megatron)"
)
