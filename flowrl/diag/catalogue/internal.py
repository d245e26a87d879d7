"""FR99 internal."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR9901",
        headline="internal error",
        label="{detail}",
        why="this is a fault of FlowRL, not of the flow",
        help="report it with the traceback above",
        exit_code=70,
    ),
)
