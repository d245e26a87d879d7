"""FR0534 to FR0539: what placement minimises, and wishes that say nothing."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0534",
        headline="no placement is as fast as asked",
        label="a step may take {asked} s",
        why="of all placements that fit, the fastest takes {fastest} s a step ({how})",
        help="allow {fastest} s or more, or give the flow more or faster devices",
    ),
    Code(
        id="FR0535",
        headline="a price without prices",
        label="placement is to minimise a price, and {where} has none",
        why="what a step costs is the price of its devices for as long as it takes",
        help="write `cluster.price_per_gpu_hour`, or that of each group; or `objective: gpu_seconds`",
    ),
    Code(
        id="FR0536",
        headline="roles that stay apart from nobody",
        label="{roles}",
        why="roles of one list in `apart` share no device with each other, so it takes two of them",
        help="name the roles that it must stay apart from, or remove the list",
    ),
)
