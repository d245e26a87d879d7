"""FR072 numbers of a plan: opened, measured and refitted."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0720",
        headline="the plan has no such number",
        label="nothing in `{plan}` has the key `{key}`",
        help="`flowrl explain {plan}` lists what there is to open",
    ),
    Code(
        id="FR0721",
        headline="the key means several numbers",
        label="{count} numbers of `{plan}` have a key that `{key}` may stand for:",
        help="give more of the key: one of these as it stands, in quotes where it has spaces",
    ),
    Code(
        id="FR0722",
        headline="the device is not in the catalogue",
        label="the driver calls it `{device}`",
        why="a profile holds shares of a device's peaks, and the catalogue has the peaks",
        help="docs/reference/ops.md lists the devices that are known",
    ),
    Code(
        id="FR0723",
        headline="the run has no trace to refit to",
        label="`{folder}`: {reason}",
        why="constants are fitted to one half of the repeats of an instruction and judged by the other half",
        help="run more steps; a run writes trace.json when it ends, also when it is interrupted",
    ),
)
