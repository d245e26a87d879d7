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
        id="FR0245",
        headline="assumption that cannot hold",
        severity="warning",
        label="{problem}",
        why="the planner takes the nearest that can be, and its times are not those of the assumption",
        help="{fix}",
    ),
    Code(
        id="FR0260",
        headline="edge into a data set",
        label="`{name}` reads nothing",
        why="a data set gives prompts and their columns; data travels from left to right",
        help="turn the edge round: `{name}` stands left of the arrow",
    ),
    Code(
        id="FR0261",
        headline="template not found",
        label="no file `{file}`",
        why="paths are relative to the flow's folder, `{folder}`",
        help="make the file, or correct the path",
    ),
    Code(
        id="FR0262",
        headline="environment file not found",
        label="no file `{file}`",
        why="paths are relative to the flow's folder, `{folder}`; an environment of a library is `LIBRARY:ID`",
        help="make the file, or correct the path",
    ),
    Code(
        id="FR0263",
        headline="environment class not found",
        label="{problem}",
        why="the file is read without being run; only a class defined at its top level is seen",
        help="name one of: {known}",
    ),
)
