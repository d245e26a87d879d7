"""FR087 rewards by sandboxes, routers and judges."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0870",
        headline="sandbox that this host cannot hold",
        label="`{role}`: {reason}",
        why="code that nobody has read runs in it, so it is used only where its walls were seen to stand",
        help="run on a host that allows user namespaces (Linux 5.12 or later), or accept what `isolation: limits` "
        "leaves open: the host's files and network",
    ),
    Code(
        id="FR0871",
        headline="unknown environment of a sandbox",
        label="no environment is named `{image}`: {why}",
        help="what is here: {known}",
    ),
    Code(
        id="FR0872",
        headline="tests of a wrong form",
        label="`{column}` of {row} is {found}",
        why="a test is Python that runs after the response's code, or {{input: text, output: text}}",
        help="give each row a test or a list of tests, or write `on_error: default` (score 0) or `on_error: drop` on "
        "the role",
        exit_code=5,
    ),
    Code(
        id="FR0873",
        headline="row without a route",
        label="no route of `{role}` takes {value} of `{by}`",
        why="a sample without a reward cannot be trained on, and this value is first seen now: it comes from the data",
        help='its routes are {known}; add one, or `"*": REWARD` for all the rest',
        exit_code=5,
    ),
    Code(
        id="FR0874",
        headline="judge that cannot be asked",
        label="`{role}`: {problem}",
        help="{fix}",
        exit_code=5,
    ),
)
