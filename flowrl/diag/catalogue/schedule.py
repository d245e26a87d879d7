"""FR06 schedule and staleness."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
