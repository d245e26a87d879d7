"""FR074 sweeps, and plans that move to another cluster."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0740",
        headline="malformed axis of a sweep",
        label="{problem}",
        why="values have commas between them; a comma inside quotes, brackets or braces belongs to a value",
        help="for example `--gpus 8,16,32 --gpu H100-80G,H20 --set step.prompts=64,128 --price H20=1.2`",
    ),
    Code(
        id="FR0741",
        headline="a sweep does not say which nodes it means",
        label="of which group",
        why="the cluster has several groups of nodes: {known}",
        help="name one: `{flag} {first}={values}`; the others stay as they are",
    ),
    Code(
        id="FR0742",
        headline="no such group of nodes to sweep",
        label="`{name}` is not a group of the cluster",
        why="its groups are {known}",
        help="use the name of a group under `cluster.groups`",
    ),
    Code(
        id="FR0743",
        headline="a sweep over GPUs where there are none",
        label="the flow's cluster `{cluster}` has processors only",
        why="how many GPUs says nothing without which",
        help="say which: `--gpu H100-80G`",
    ),
    Code(
        id="FR0744",
        headline="a sweep with too many points",
        label="{points:,} combinations; up to {limit:,} are planned",
        why="{product} = {points:,}, and each is a plan of its own",
        help="give fewer values, or sweep one key after the other",
    ),
    Code(
        id="FR0745",
        severity="warning",
        headline="the kept plan is not of this flow",
        label="{moved} of `{file}` {differ} from what is planned now",
        why="figures before and after then differ by more than the cluster",
        help="plan the flow as the run has it, or compare the two plans: flowrl diff {file} FLOW",
    ),
)
