from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic
from flowrl.explain.question import SOURCE, parse

QUESTION = "critik on rollout"


def diagnostics() -> tuple[Diagnostic, ...]:
    Path(SOURCE).write_text(QUESTION, encoding="utf-8")
    parse(QUESTION, ["actor_infer", "actor_train", "critic", "reference"], ["rollout", "train"])
    return ()
