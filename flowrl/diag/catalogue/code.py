"""One entry of the catalogue."""

from __future__ import annotations

import msgspec


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The constant headline of a code and the templates (`str.format`) of its particulars.

    `label` goes under the primary span; `why` is one sentence with the arithmetic; `help` is the edit to make, used
    where the finder gives no `Help` of its own. Exit codes: 1 user error · 4 infeasible · 5 run failed · 70 our bug.
    """

    id: str
    headline: str
    label: str = ""
    why: str | None = None
    help: str | None = None
    severity: str = "error"
    exit_code: int = 1
