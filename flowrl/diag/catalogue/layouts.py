"""FR0430 to FR0449: models on engines, devices and transports that do not take them."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0430",
        headline="context parallelism does not cut the model",
        label="`cp: {cp}` for `{role}`, whose model has {heads} attention heads and {kv_heads} key-value heads",
        why="{fault}",
        help="sizes of cp that cut this model: {legal}",
    ),
    Code(
        id="FR0431",
        headline="adapter of too high a rank for the engine",
        label="`{model}` has adapters of rank {rank}, and `{role}` runs on `{backend}`",
        why="`{backend}` serves adapters of the ranks {ranks}, a rank between two of them as the next one",
        help="set `rank: {most}` or less",
    ),
    Code(
        id="FR0433",
        headline="a prompt does not fit the engine's batch",
        label="`{role}` takes {budget:,} tokens at a time, and a sample may have {tokens:,}",
        why="without chunked prefill an engine reads a prompt whole: max_batch_tokens {budget:,} < {tokens:,}",
        help="set `max_batch_tokens: {tokens}` or more, or leave `enable_chunked_prefill` out",
    ),
    Code(
        id="FR0434",
        headline="unknown transport",
        label="`{transport}` on `{edge}`; known are {known}",
        help="leave `transport` out: placement decides",
    ),
    Code(
        id="FR0435",
        headline="weights that the trainer cannot name",
        label="`{model}` is a {architecture}, and `{backend}` trains it",
        why="`{receiver}` reads weights under the names of transformers; `{backend}` gives those of {known}",
        help="train `{role}` with `backend: fsdp`, whose names are those already",
    ),
    Code(
        id="FR0436",
        headline="transport that does not reach",
        label="`{edge}` goes from pool `{source}` to pool `{target}`",
        why="{fault}",
        help="use {legal}, or leave `transport` out: placement decides",
    ),
    Code(
        id="FR0437",
        headline="samples may be longer than the model's positions",
        severity="warning",
        label="`{op}` may make samples of {tokens:,} tokens, and the card of {model} has {positions:,} positions",
        why="longest prompt + max_response_tokens = {tokens:,}, {over:,} more; rotary positions beyond them were never "
        "trained",
        help="lower `max_response_tokens` or `max_prompt_tokens` by {over:,}, set `max_context_tokens: {positions}`, "
        "or give a folder whose config.json has more",
    ),
    Code(
        id="FR0438",
        headline="the device does not compute in this dtype",
        label="`{model}` is {dtype}, and {roles} on {device}",
        why="{device} computes in {dtypes}",
        help="write `dtype: {first}` on the model, or use a newer device",
    ),
    Code(
        id="FR0439",
        headline="images for a model that reads text",
        label="`{data}` brings images to `{role}`, whose model `{model}` is a {architecture}",
        why="a model without an image encoder would answer the text alone",
        help="use a model that reads images, or take `images` out",
    ),
    Code(
        id="FR0440",
        headline="another version than the one FlowRL works with",
        label="{package} {found} is installed, FlowRL works with {wanted}",
        why="{reason}",
        help="pip install '{package}=={wanted}'",
    ),
)
