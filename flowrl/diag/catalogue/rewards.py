"""FR02 user functions' columns, rewards made of rewards, and mixed data."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0223",
        headline="output that does not fit the rows of its function",
        label="`{op}` works on {rows} and writes `{name}` per {unit}",
        why="{why}",
        help="{fix}",
    ),
    Code(
        id="FR0224",
        headline="unknown type of a column",
        label="no type is named `{name}`",
        help="name one of: {known}",
    ),
    Code(
        id="FR0225",
        headline="unknown column on an edge",
        label="nothing upstream of this edge makes `{name}`",
        why="`fields` lets only the named columns pass",
        help="name columns that `{source}` has: {known}",
    ),
    Code(
        id="FR0226",
        headline="role that is no reward",
        label="`{name}` is {kind}; {what} rewards",
        help="name a reward: {known}",
    ),
    Code(
        id="FR0227",
        headline="comparison by a reward that compares nothing",
        label="`{role}` is a reward by {flavour}, which scores one sample at a time",
        why="`compare` looks at all samples of one prompt; a judge or a function can",
        help="call `{role}.score`, or give `{role}` a `judge` or a `function`",
    ),
    Code(
        id="FR0228",
        headline="sources of a mix differ",
        label="`{having}` makes `{field}`, `{lacking}` does not",
        why="only kept columns and images may be missing from some sources of a mix",
        help="{fix}",
    ),
    Code(
        id="FR0230",
        headline="shares do not add up",
        label="the shares of `{name}` add up to {total}",
        why="a share is the part of the prompts that comes from a source",
        help="{fix}",
    ),
    Code(
        id="FR0231",
        headline="mix of itself",
        label="{path}",
        why="a mix draws from other data sets",
        help="take one of them out",
    ),
    Code(
        id="FR0233",
        headline="reward made of itself",
        label="{path}",
        why="a router or a combination needs the other rewards first",
        help="take `{role}` or what leads back to it out",
    ),
    Code(
        id="FR0234",
        headline="reward made of nothing",
        label="`{block}` of `{role}` names no reward",
        help="name one or more, or give `{role}` another flavour",
    ),
    Code(
        id="FR0235",
        headline="value without a route",
        label="no route of `{role}` takes {tags} of `{by}`",
        why="a sample without a reward cannot be trained on",
        help="{fix}",
    ),
    Code(
        id="FR0236",
        headline="value with two routes",
        label="`{value}` goes to `{reward}`, and to `{other}`",
        why="each sample has one reward",
        help="name `{value}` once",
    ),
    Code(
        id="FR0237",
        headline="route that nothing takes",
        label="{problem}",
        why="`{reward}` would score no sample by it",
        help="{fix}",
    ),
    Code(
        id="FR0238",
        headline="source without a column that its reward reads",
        label="`{op}` reads `{field}`, and `{source}`, whose samples it scores, keeps no such column",
        why="of a mix, a kept column is null where a source lacks it",
        help="{fix}",
    ),
)
