"""FR0460 to FR0469: engines that are started for less than the flow asks of them."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0460",
        headline="samples are longer than the engine is started for",
        label="`{role}` is started for {given:,} tokens, and a sample may have {tokens:,}",
        why="longest prompt + longest response of its calls = {tokens:,}; an engine refuses or cuts what is longer",
        help="set `max_model_tokens: {tokens}` or more, or leave it out",
    ),
)
