"""FR0312 to FR0329: rates, filters and liveness."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0312",
        headline="updates do not divide into versions",
        label="{updates} updates a step / every {every} leave {rest} over",
        why="`{source}` publishes a version after every {every} updates, the last one of the step included: "
        "{updates} = {every}·{quotient} + {rest}",
        help="nearest legal sizes: every_updates {near_every}",
    ),
    Code(
        id="FR0313",
        headline="share of rows is no whole count",
        label="{share} of {count} {what} is {product}",
        why="the ops below take the same number of {what} in every step",
        help="nearest legal sizes: {legal}",
    ),
    Code(
        id="FR0314",
        headline="minibatches of unknown size",
        label="{updates} updates share what `{dropping}` leaves of the step, which changes from step to step",
        why="all updates of a step take the same number of prompts, known before it begins",
        help="fill the step up again with `step.refill: {{max_rounds: 4}}`, {instead}, or train with one update",
    ),
    Code(
        id="FR0315",
        headline="filter splits groups",
        label="`{filter}` drops single samples, and `{op}` needs whole groups",
        why="loss `{loss}` compares the samples of one prompt with each other",
        help="let it drop groups (`unit: group`), or mask samples (`action: mask`)",
    ),
    Code(
        id="FR0316",
        headline="ops that wait for each other",
        label="{first}",
        why="{circle}",
        help="delete one of these edges, or draw it from what is finished before the others begin",
    ),
)
