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
)
