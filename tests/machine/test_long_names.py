"""Names that no file system holds are names of nothing: told at their place, like any other."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.machine.models import shape_of


@pytest.mark.parametrize("source", ["9" * 5000, "./" + "x" * 5000])
def test_a_source_too_long_for_a_path(source: str) -> None:
    with pytest.raises(FlowError) as caught:
        shape_of(source)
    assert caught.value.diagnostics[0].code in ("FR0401", "FR0402")
