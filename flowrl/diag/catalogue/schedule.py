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
        id="FR0602",
        headline="refill without a filter",
        severity="warning",
        label="nothing drops rows, so the first {prompts} prompts are always enough",
        help="draw edges through a filter with `action: drop`, or delete `refill`",
    ),
    Code(
        id="FR0603",
        headline="correction that corrects nothing",
        severity="warning",
        label="{names} compares old log-probs of `{op}` with the rollout's, and they are the rollout's",
        why="with one update a step at lag 0, and with `old_log_probs: rollout`, the ratio is 1 for every token",
        help="set `old_log_probs: recompute` on `{role}.update`, which also measures how far the engine is off, or "
        "delete the correction",
    ),
    Code(
        id="FR0604",
        headline="stale samples without correction",
        severity="warning",
        label="samples on `{edge}` may be {lag} old when `{op}` trains on them",
        why="loss `{loss}` takes them as if the weights of the step had made them, which biases the gradient",
        help="add `correction: {{name: tis, unit: token, cap: 2.0}}` to `{role}.update`, or set `max_lag: 0`",
    ),
    Code(
        id="FR0605",
        headline="lag that no sample has",
        severity="warning",
        label="no `=>` reaches a generator whose samples are trained on, so `{key}` changes nothing",
        help="draw an edge such as `- actor_train => actor_infer`, or delete the key",
    ),
    Code(
        id="FR0606",
        headline="samples of weights that are seldom published",
        severity="warning",
        label="`{op}` trains on samples of weights that are up to {drift} updates old",
        why="loss `{loss}` takes them as if the weights of the step had made them, which biases the gradient; lag "
        "counts published versions only",
        help="publish in every step, or add `correction: {{name: tis, unit: token, cap: 2.0}}` to `{role}.update`",
    ),
    Code(
        id="FR0607",
        headline="versions that nobody reads",
        severity="warning",
        label="of the {versions} versions of a step `{target}` reads only the last",
        why="at lag 0 the next step begins with the newest weights, and waits for them",
        help="set `max_lag: 1` or more on this edge, or publish once a step",
    ),
)
