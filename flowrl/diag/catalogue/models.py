"""FR04 models and layouts."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
