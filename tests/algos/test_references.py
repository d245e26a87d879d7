"""docs/references.md has a row for every name that a flow can say, so that a new one is compared or says why not."""

from __future__ import annotations

from pathlib import Path

from flowrl.algos import names
from flowrl.algos.filters import RULES

PAGE = Path(__file__).parents[2] / "docs/references.md"


def test_every_name_has_a_row() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    told = [(what.strip(), name.strip(" `")) for what, name, *_ in rows]
    of = {"estimator": names.ESTIMATORS, "loss": names.LOSSES, "correction": names.CORRECTIONS}
    of |= {"aggregate": names.AGGREGATES, "kl": names.KL_FORMS, "filter": RULES}
    assert sorted(told) == sorted((what, name) for what, each in of.items() for name in each)
    assert all(compared.strip() for _, _, compared, _ in rows)
