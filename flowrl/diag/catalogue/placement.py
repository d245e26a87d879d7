"""FR05 placement, memory and clusters."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0501",
        headline="placement does not fit",
        label="{asked}",
        why="{why}",
        help="use more or larger devices, or a smaller model",
        exit_code=4,
    ),
    Code(
        id="FR0502",
        headline="pools want more devices than there are",
        label="{needed} devices wanted",
        why="{sum} = {needed}, and the cluster {cluster} has {there}: {over} too many",
        help="make a pool smaller, or let roles share one: its roles take turns on the same devices",
    ),
    Code(
        id="FR0503",
        headline="a pool does not divide by its layout",
        label="pool `{pool}` has {gpus} devices, a copy of `{role}` takes {each}",
        why="tp {tp} * pp {pp} * cp {cp} = {each}, and {gpus} leaves {rest} over",
        help="give the pool {nearest} devices, or change the layout",
    ),
    Code(
        id="FR0504",
        headline="role in two pools",
        label="`{role}` is in pool `{pool}` and in pool `{first}`",
        why="a role has one state, which lives on one set of devices",
        help="remove it from one of them",
    ),
    Code(
        id="FR0505",
        headline="no such role to place",
        label="`{name}` in {where}; roles are {known}",
        help="use the name of a role of this flow",
    ),
    Code(
        id="FR0506",
        headline="no such pool",
        label="`{name}` in {where}; pools are {known}",
        help="use the name of a pool",
    ),
    Code(
        id="FR0507",
        headline="more ranks than rows",
        label="`{op}` has {rows:,} rows a firing, `{role}` has {dp} data-parallel ranks",
        why="{sum} = {rows:,} rows, so {idle} of {dp} ranks would have none",
        help="use at most {rows:,} devices for `{role}`, or a larger minibatch (fewer `updates`, more `prompts`)",
    ),
    Code(
        id="FR0508",
        headline="roles that must stay apart share a pool",
        label="{roles} would share pool `{pool}`",
        why="`placement.apart` says that they never share a device",
        help="put them into different pools, or remove the pair from `apart`",
    ),
    Code(
        id="FR0509",
        headline="this role needs no pool",
        label="`{role}` in {where}",
        why="a {kind} without a model runs on the host's CPU, in the pool `host`",
        help="remove it from the pool; a function that uses a GPU says so by `engine: {{gpu_bytes: …}}`",
    ),
    Code(
        id="FR0510",
        headline="this is no cluster",
        label="`{text}` is neither `local` nor a shorthand",
        why="a shorthand is DEVICESxNAME, such as 16xH100-80G, or NODESxDEVICESxNAME, such as 4x8xH20",
        help="write `local`, a shorthand, or a mapping with gpu, nodes and gpus_per_node",
    ),
    Code(
        id="FR0511",
        headline="unknown device",
        label="`{name}` is not in the catalogue; known are {known}",
        why="what fits and how fast it is follows from the device's memory and rates",
        help="use a device of the catalogue",
    ),
    Code(
        id="FR0512",
        headline="devices do not fill whole nodes",
        label="{count} devices, {size} to a node",
        why="{count} = whole nodes of {size} and {rest} over, and which devices share a node decides what fits",
        help="write {count} as whole nodes of {name}",
    ),
    Code(
        id="FR0513",
        headline="no such group of nodes",
        label="`{name}` of pool `{pool}`; groups of the cluster are {known}",
        help="use the name of a group under `cluster.groups`",
    ),
    Code(
        id="FR0514",
        headline="no placement is left",
        label="{asked}",
        why="{why}",
        help="use `placement: auto`, a larger cluster, or fewer wishes in `pin` and `apart`",
    ),
    Code(
        id="FR0516",
        headline="the pool `host` has no devices",
        label="`host` is where roles without a device live",
        why="its slots are processor cores, so it can't be given GPUs",
        help="give the pool another name",
    ),
)
