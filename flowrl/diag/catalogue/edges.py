"""FR03 what an edge may join and say."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0331",
        headline="interaction between wrong ends",
        label="{problem}",
        why="`<->` couples generators, on its left, with an environment's step; records leave from the generators",
        help="{fix}",
    ),
    Code(
        id="FR0332",
        headline="two first messages",
        label="`{generate}` has its first message from `{reset}` by `<->`, and this edge gives it one more",
        why="an episode has exactly one first message: from the data or from the environment's reset",
        help="delete the edge `{edge}`; the reset hands the data's columns on",
    ),
    Code(
        id="FR0333",
        headline="weights into a frozen generator",
        label="`{role}` is frozen, and this edge gives it new weights",
        help="delete the edge, or `frozen: true`",
    ),
    Code(
        id="FR0334",
        headline="rows that never match",
        label="`{op}` joins rows of {here} with rows of {there}",
        why="records join by sample; each call of `generate` makes its own samples, each data set its own prompts",
    ),
    Code(
        id="FR0335",
        headline="weights of two trainers in one role",
        label="`{role}` gets weights from `{source}`, and from `{other}`",
        why="a role holds one version of one trainer's weights",
        help="give each trainer a receiver of its own",
    ),
    Code(
        id="FR0340",
        headline="inner call that is written",
        label="`{caller}` calls `{inner}` itself",
        why="inner calls of routers and judges are drawn from the edges into their callers; `flowrl show` shows them",
        help="{fix}",
    ),
)
