"""No backend of ours has the axis yet: the rule is asked with the traits of one that would."""

from dataclasses import replace

from flowrl.diag.diagnostic import Diagnostic
from flowrl.diag.span import Span
from flowrl.machine.models import CARDS
from flowrl.machine.traits import TRAITS
from flowrl.placement.checks.engine import context_faults
from flowrl.placement.request import LayoutRequest


def diagnostics() -> tuple[Diagnostic, ...]:
    """Qwen2.5-14B has 40 attention heads and 8 key-value heads."""
    traits = replace(TRAITS["fsdp"], axes=("dp", "cp"))
    layout = LayoutRequest(cp=16, span=Span("flow.yaml", 23, 67, 23, 75))
    return tuple(context_faults("actor_train", traits, layout, CARDS["Qwen/Qwen2.5-14B"]))
