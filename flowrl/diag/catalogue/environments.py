"""FR086 environments."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0860",
        headline="package of an environment not installed",
        label="`{env}` is an environment of the package `{package}`, which is not installed",
        help="pip install 'flowrl-compiler[envs]'; of GEM: pip install --no-deps gem-llm==0.1.0",
    ),
    Code(
        id="FR0861",
        headline="environment not found",
        label="nothing is named `{env}`",
        help="name one that there is, such as {known}",
    ),
    Code(
        id="FR0862",
        headline="environment failed",
        label="`{env}` failed {doing} of {row}: {error}",
        help="mend the environment, or say that the run goes on: `on_error: default` ends the episode there, "
        "`on_error: drop` leaves its group out",
    ),
    Code(
        id="FR0864",
        headline="observation without tokens",
        label="what sample {sample} of prompt {prompt} is to hear has no tokens",
        why="between two turns of a policy stands what it has heard: turns that touch cannot be told apart",
        help="let the environment say something, or use a model whose tokenizer has a chat template",
    ),
)
