"""FR09 run time."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
