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
)
