"""FR0240 to FR0264: keys, lengths and names that mean nothing together."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0240",
        headline="key without effect",
        label="nothing reads `{key}` here",
        why="{why}",
        help="remove `{key}`",
    ),
    Code(
        id="FR0241",
        headline="setting without effect",
        severity="warning",
        label="nothing reads `{key}` here",
        why="{why}",
        help="remove `{key}`",
    ),
    Code(
        id="FR0242",
        headline="lengths that contradict each other",
        label="{problem}",
        why="{why}",
        help="{fix}",
    ),
    Code(
        id="FR0243",
        headline="episode longer than its response",
        severity="warning",
        label="{turns} turns of {turn:,} tokens are {all:,}, and an episode of `{op}` ends at {response:,}",
        why="{turns}·{turn:,} = {all:,}: after {fit} full turn{s} the episode is cut off",
        help="set `max_response_tokens: {all}`, or `max_turn_tokens: {short}`, or `max_turns: {fit}`",
    ),
    Code(
        id="FR0244",
        headline="assumption about nothing",
        label="no op is named `{name}`",
        why="`assume:` has what the planner may take for granted of an op, `role.op`",
        help="name one of: {known}",
    ),
    Code(
        id="FR0260",
        headline="edge into a data set",
        label="`{name}` reads nothing",
        why="a data set gives prompts and their columns; data travels from left to right",
        help="turn the edge round: `{name}` stands left of the arrow",
    ),
)
