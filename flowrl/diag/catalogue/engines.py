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
    Code(
        id="FR0461",
        headline="an engine's step is smaller than its batch",
        label="{budget:,} tokens a step, and `{role}` decodes {sequences:,} sequences at once",
        why="a sequence that decodes takes one token of every step; vLLM refuses fewer tokens than sequences",
        help="set `max_batch_tokens: {sequences}` or more, or `max_sequences: {budget}` or less",
    ),
    Code(
        id="FR0462",
        headline="engine is started for more than the model's positions",
        label="`{role}` is started for {given:,} tokens, the model has {positions:,} positions",
        why="vLLM refuses to start for a longer context than the model's config.json has positions",
        help="set `max_model_tokens: {positions}` or less, or leave it out",
    ),
)
