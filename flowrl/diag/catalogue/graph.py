"""FR03 graph shape."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0301",
        headline="weights edge between wrong ends",
        label="{problem}",
        why="`=>` carries the weights that an update makes, from a trainer to a role with a model of the same head",
        help="{fix}",
    ),
    Code(
        id="FR0302",
        headline="cycle within one step",
        label="this edge closes the cycle {path}",
        why="within a step a value cannot depend on itself",
        help="delete one of these edges; only weights (`=>`) cross from one step to the next",
    ),
    Code(
        id="FR0303",
        headline="batch does not divide",
        label="{prompts} prompts{left} / {updates} updates leave {rest} over",
        why="each of the {updates} updates of `{op}` takes the same number of prompts: "
        "{prompts} = {updates}·{quotient} + {rest}",
        help="nearest legal sizes: prompts {near_prompts}; or updates {near_updates}",
    ),
    Code(
        id="FR0304",
        headline="group too small",
        label="`{op}` compares the samples of one prompt and gets {samples}",
        why="`{name}` needs at least {least} samples of each prompt",
        help="set `step.samples_per_prompt: {least}` or more",
    ),
    Code(
        id="FR0305",
        headline="generator without weights",
        severity="warning",
        label="no `=>` reaches `{role}`, so it generates with its initial weights in every step",
        help="draw the edge `- {trainer} => {role}`, or say `frozen: true` on `{role}`",
    ),
    Code(
        id="FR0306",
        headline="edge that carries nothing",
        severity="warning",
        label="nothing that is read travels on this edge",
        why="order follows from what ops read; an edge alone orders nothing",
        help="delete the edge",
    ),
    Code(
        id="FR0307",
        headline="op that nobody reads",
        severity="warning",
        label="nothing reads what `{op}` makes: {fields}",
        help="draw an edge to what shall read it, or delete the op's edges",
    ),
    Code(
        id="FR0308",
        headline="rows of another call do not match",
        label="`{op}` reads `{slot}` from `{producer}`, which has {samples} rows for each prompt",
        why="a field crosses from one call of generate to another by prompt, with one row each",
        help="set `samples_per_prompt: 1` on that call",
    ),
    Code(
        id="FR0309",
        headline="nothing is trained or scored",
        label="no edge reaches an update or a reward",
        help="draw an edge to a trainer's `update`, or to a reward's `score`",
    ),
    Code(
        id="FR0310",
        headline="role without edges",
        severity="warning",
        label="no edge names an op of `{role}`, so it is left out",
        help="draw an edge to one of its ops, or delete the role",
    ),
    Code(
        id="FR0311",
        headline="second update of one role",
        label="`{role}` is also updated by `{other}`",
        why="a step makes one version of a role's weights; its minibatches are `updates`, its passes `epochs`",
        help="draw all edges to `{role}.update`, or declare a second trainer",
    ),
)
