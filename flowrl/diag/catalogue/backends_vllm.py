"""FR0840 to FR0869: the vLLM generator."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
