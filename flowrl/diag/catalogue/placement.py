"""FR05 placement and memory."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
