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
    Code(
        id="FR0730",
        headline="the plan is stale",
        label="{names} moved since `{plan}` was made",
        why="what is planned is what is run, so a plan that no longer belongs to its flow is not run for it",
        help="make it anew: {anew} -o {plan}",
    ),
    Code(
        id="FR0731",
        headline="this is no question about a placement",
        label="{problem}",
        why="a question is one or more of: {forms}; several are joined by commas",
        help="write it as `critic with reference`, `actor_infer tp4, critic stays`, or `colocated`",
    ),
    Code(
        id="FR0732",
        headline="the question names nothing of this plan",
        label="`{name}` is no {kind} of this plan: {known}",
        help="use the name of a {kind} of this plan",
    ),
    Code(
        id="FR0733",
        headline="the question contradicts itself",
        label="{problem}",
        why="it is answered by planning with all of it, so all of it must be able to hold at once",
        help="ask for one of the two",
    ),
    Code(
        id="FR0734",
        headline="the plan file was edited",
        label="what it holds is not what its `digests.plan` is of",
        why="what is planned is what is run: a number that was changed by hand fits none of the others",
        help="change the flow and make the plan anew: flowrl plan FLOW -o plan.json",
    ),
)
