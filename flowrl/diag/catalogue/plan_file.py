"""FR07 plan file and digests."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = ()
