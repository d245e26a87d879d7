"""FR0140 to FR0149: what installed packages add to the language."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0140",
        headline="keys of a package that cannot be used",
        label="{problem}",
        why="the package declares keys for this backend by the entry-point group `flowrl.keys`",
        help="mend the package's declaration, install another version of it, or remove the package",
    ),
)
