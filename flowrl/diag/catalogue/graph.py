"""FR03 graph shape."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
