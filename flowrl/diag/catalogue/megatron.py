"""FR0880 to FR0884: the backend on Megatron Core."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0880",
        headline="Megatron Core is not installed",
        label="backend `megatron` needs megatron-core {wanted}; this Python {found}",
        help="`make install-megatron` (docs/megatron.md), or `backend: fsdp`",
        exit_code=5,
    ),
    Code(
        id="FR0881",
        headline="model that backend megatron cannot make",
        label="`{model}`: {reason}",
        help="train it with `backend: fsdp`, which takes the model as transformers has it",
    ),
)
