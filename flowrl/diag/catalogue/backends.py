"""FR08 backends."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
