"""FR07 plan file and digests."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0701",
        headline="the plan file is not JSON",
        label="{reason}",
        help="make it anew: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0702",
        headline="this is no plan",
        label="there is no `flowrl_plan` with a version number at the top",
        why="a plan begins with the version of its format, so that an old one is never misread",
        help="make one: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0703",
        headline="plan of another version",
        label="version {found}; this FlowRL reads version {known}",
        why="a plan is read whole or not at all: a missing or an added key could change what is run",
        help="make it anew from the flow: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0704",
        headline="the plan file has the wrong shape",
        label="{fault}",
        why="a plan is written by `flowrl plan` and not meant to be edited",
        help="change the flow and make the plan anew: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0705",
        headline="the plan file is too large",
        label="{size:,} bytes; at most {limit:,} are read",
        help="make it anew from the flow: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0706",
        headline="the plan file can't be read",
        label="{file}: {reason}",
        help="name a file that `flowrl plan FLOW -o plan.json` has written",
    ),
    Code(
        id="FR0707",
        headline="the plan's files are not as they were",
        label="{role} file `{path}` {problem}",
        why="a plan is run with the files it was made from; it was looked for from {folders}",
        help="run it from the folder where it was made, or make it anew: flowrl plan FLOW -o plan.json",
    ),
    Code(
        id="FR0708",
        headline="a plan takes no changes",
        label="{flag} was given with the plan `{file}`",
        why="what is planned is what is run",
        help="give the flag with the flow: flowrl run FLOW {flag} …",
    ),
)
