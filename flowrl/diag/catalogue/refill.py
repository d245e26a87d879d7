"""FR08 refill, filters and functions at run time."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0856",
        headline="too few prompts are left after all rounds",
        label="step {step}: {rounds} rounds drew {drawn:,} prompts of `{data}`, and {kept:,} of {prompts:,} are left",
        why="{filters} left {share} of them; a step of fewer prompts would not be the one that was planned",
        help="allow more rounds or a larger `oversample`, give prompts on which the policy sometimes fails and "
        "sometimes does not, or let the filter keep more",
        exit_code=5,
    ),
    Code(
        id="FR0857",
        headline="function failed",
        label="`{function}` failed: {error}",
        why="`{op}` calls it with all rows of the step, and nothing stands in for what it returns",
        help="mend the function, then go on from the last checkpoint",
        exit_code=5,
    ),
    Code(
        id="FR0858",
        headline="function returned other columns than it should",
        label="`{function}` returned {problem}",
        why="`{op}` calls it with lists of {rows} values, and each column that it returns has {rows} values, in their "
        "order; a token column has one list a row, as long as the row's tokens",
        help="return a list, or a mapping of lists with the names under `outputs:`",
        exit_code=5,
    ),
)
