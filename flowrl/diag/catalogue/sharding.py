"""FR0450 to FR0459: trainers and scorers that are asked to be cut as their backend could not."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0450",
        headline="copies of a trainer's states do not fit its ranks",
        label="`shard_devices: {size}` for `{role}`",
        why="{fault}",
        help="sizes that share out its ranks: {legal}",
    ),
    Code(
        id="FR0451",
        headline="expert parallelism does not cut the model",
        label="`ep: {ep}` for `{role}`, whose model has {experts} experts",
        why="{fault}",
        help="sizes of ep that cut it here: {legal}",
    ),
)
