from flowrl.diag.diagnostic import Diagnostic
from flowrl.machine.models import CARDS, shape_of


def diagnostics() -> tuple[Diagnostic, ...]:
    shape_of("stages.sft.actor", stages={"sft.actor_train": CARDS["Qwen/Qwen2.5-0.5B"]})
    return ()
