"""FR00 files and YAML."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
