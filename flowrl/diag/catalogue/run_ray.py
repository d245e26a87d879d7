"""FR0950 to FR0989: weight buffers and the Ray launcher."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0950",
        headline="no room in shared memory for the weights",
        label="{folder} has {free_mib} MiB free",
        why="the weight buffer of this edge takes {need_mib} MiB: every slot holds all parameters",
        help="make {folder} larger (in a container: --shm-size), or free what old runs left there",
        exit_code=5,
    ),
    Code(
        id="FR0951",
        headline="weight buffer stays locked",
        label="version {version} waited {seconds} s for {buffer}",
        why="a slot is written by trainer ranks or read by generator ranks, never both at once",
        help="look in the run's trace for the rank that still reads or writes the version before",
        exit_code=5,
    ),
    Code(
        id="FR0952",
        headline="weights are not complete",
        label="version {version} lacks the part of trainer rank {ranks}; the slot holds version {held}",
        why="a version is taken only when every rank of the trainer has written its shards",
        help="look for what stopped that rank; `flowrl resume` continues from the last checkpoint",
        exit_code=5,
    ),
    Code(
        id="FR0953",
        headline="Ray cannot be reached",
        label="{address}: {reason}",
        why="the launcher `ray` connects to RAY_ADDRESS, or starts a Ray of its own on this host",
        help="unset RAY_ADDRESS to use this host alone, or start the cluster first: ray start --head",
    ),
    Code(
        id="FR0954",
        headline="the Ray cluster has too few devices",
        label="pool `{pool}` needs {need} x {resource}, the cluster {has} {there}",
        why="every device of a pool is reserved before the run starts",
        help="give the pool fewer gpus, free the cluster, or plan for it: --cluster",
        exit_code=4,
    ),
    Code(
        id="FR0955",
        headline="a rank's process died",
        label="{who} was at {doing}",
        why="{reason}",
        help="its last words are in Ray's logs (/tmp/ray/session_latest/logs); `flowrl resume` goes on from the last "
        "checkpoint",
        exit_code=5,
    ),
    Code(
        id="FR0957",
        headline="ranks do not come up",
        label="no answer for {seconds} s from {who}",
        why="ranks of one role wait for each other; one that hangs holds up all",
        help="look at Ray's logs (/tmp/ray/session_latest/logs) for the last thing they did",
        exit_code=5,
    ),
)
