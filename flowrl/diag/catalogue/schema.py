"""FR01 schema."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
