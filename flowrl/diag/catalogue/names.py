"""FR02 names and types."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
