"""FR06 schedule and staleness."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0601",
        headline="partial rollout without lag",
        label="`{edge}` lets samples be 0 versions old",
        why="a response that goes on under new weights has tokens of at least one version before",
        help="set `schedule.max_lag: 1` or more, or `partial_rollout: false`",
    ),
    Code(
        id="FR0604",
        headline="stale samples without correction",
        severity="warning",
        label="samples on `{edge}` may be {lag} old when `{op}` trains on them",
        why="loss `{loss}` takes them as if the weights of the step had made them, which biases the gradient",
        help="add `correction: {{name: tis, unit: token, cap: 2.0}}` to `{role}.update`, or set `max_lag: 0`",
    ),
)
