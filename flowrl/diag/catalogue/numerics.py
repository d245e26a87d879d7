"""FR0610 to FR0629: what samples and log-probs stand for, and waits."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0610",
        headline="two micro-batches for one ratio",
        severity="warning",
        label="`{op}` works on {here:,} tokens at a time, `{maker}` on {there:,}",
        why="on policy the ratio of the two is 1 but for rounding, and rounding depends on the micro-batch",
        help="give both the same: `log_probs: {{micro_batch_tokens: {here}}}` on `{role}`, or write "
        "`old_log_probs: auto`, which takes the rollout's own here",
    ),
    Code(
        id="FR0611",
        headline="ratios to another engine without correction",
        severity="warning",
        label="`{op}` divides by the log-probs of `{rollout}`, which `{theirs}` made; `{ours}` trains",
        why="two engines differ on the same tokens, and the samples may be old: one ratio mixes both",
        help="write `old_log_probs: recompute` and `correction: {{name: tis, unit: token, cap: 2.0}}` on "
        "`{role}.update`: the correction then bounds what the engines differ by",
    ),
    Code(
        id="FR0612",
        headline="trained samples of a cut-off distribution",
        severity="warning",
        label="`{rollout}` samples with {cut}, and `{op}` trains on it",
        why="the rollout's log-probs are of the tokens that were left, the trainer's of all: their ratio is not 1 even "
        "with equal weights",
        help="sample the whole distribution for training (`top_p: 1.0`, `top_k: -1`), and cut it in a labelled call, "
        "such as `generate@val`",
    ),
    Code(
        id="FR0613",
        headline="training on greedy samples",
        severity="warning",
        label="`{rollout}` is greedy, and `{op}` trains on it with loss `{loss}`",
        why="at temperature 0 all samples of a prompt are equal, and none was drawn at the probability it is given",
        help="give `{role}.generate` a temperature above 0; a greedy call of its own has a label, such as "
        "`generate@val: {{temperature: 0.0}}`",
    ),
    Code(
        id="FR0614",
        headline="asynchronous wait without an end",
        severity="warning",
        label="`{op}` waits for every row of `{outside}`, and no edge between them has `timeout_seconds`",
        why="generation runs ahead of training here, so a row that is lost outside is missed by nobody, for ever",
        help="write it on the edge: `- {{edge: {edge}, timeout_seconds: 1800, on_timeout: drop}}`",
    ),
    Code(
        id="FR0615",
        headline="remote reward without a policy",
        severity="warning",
        label="`{role}` asks {endpoint}: {lacks}",
        why="a server fails or is slow sooner or later, and a run takes days",
        help="say both: `timeout_seconds: 60` and `on_error: drop` (the group) or `default` (score 0) on `{role}`",
    ),
)
