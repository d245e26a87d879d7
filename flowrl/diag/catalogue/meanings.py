"""FR0265 to FR0269, FR0350 to FR0359 and FR0620 to FR0629: flows whose words fit and that cannot mean anything."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0265",
        headline="filter that cannot decide",
        label="{problem}",
        why="a filter keeps a fixed share (`keep_top`), the rows within a range (`min`, `max`), or those of its rule",
        help="{fix}",
    ),
    Code(
        id="FR0266",
        headline="correction without a range",
        label="{problem}",
        why="mis and reject leave out ratios outside [floor, cap]; without `floor` it begins at 0, without `cap` it is "
        "open",
        help="{fix}",
    ),
    Code(
        id="FR0350",
        headline="players of different numbers of episodes",
        label="`{op}` has `samples_per_prompt: {samples}`, `{other}` {theirs}",
        why="all generators of one interaction play the same episodes of `{step}`",
        help="give both calls the same `samples_per_prompt`",
    ),
    Code(
        id="FR0351",
        headline="columns of different tokens",
        label="`{op}` reads `{slot}` of the tokens of `{there}`, and `{first}` of those of `{here}`",
        why="a column per token is as long as the response that it belongs to",
        help="let both come from one call of generate, or delete the choice in `inputs:`",
    ),
    Code(
        id="FR0352",
        headline="weights of another shape",
        label="`{source}` has {have}, `{target}` {want}",
        why="`=>` puts the weights of one role into another, so both have models of one shape",
        help="let both use the model `{model}`",
    ),
    Code(
        id="FR0353",
        headline="tokens of another tokenizer",
        label="`{op}` works on the tokens of `{generate}`; `{model}` has {have} of them, `{theirs}` {want}",
        why="a role with a tokenizer of its own reads text, and writes values of samples only",
        help="use a model of the family of `{theirs}`, or let it score samples as a reward (`unit: sample`)",
    ),
    Code(
        id="FR0620",
        headline="reward that is hidden",
        severity="warning",
        label="`{op}` reads `{field}` of `{producer}`, which hides that of `{hidden}` without reading it",
        why="of two producers on one way the later counts, so nothing trains on `{hidden}`",
        help="add both up with `combine: {{{first}: 1.0, {second}: 1.0}}`, or name the one that is meant: "
        "`inputs: {{{slot}: {second}.{field}}}`",
    ),
)
