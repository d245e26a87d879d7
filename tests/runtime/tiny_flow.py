"""A flow small enough to run with the real backends in a second: the quickstart with a tiny model and few steps."""

from __future__ import annotations

from pathlib import Path

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = SessionOptions(progress=False, threads=1)


def tiny_quickstart(*sets: str) -> Plan:
    """Two stages, warm-up and GRPO with validation, of a model of a few thousand parameters."""
    small = (
        "models.policy.source.hidden_size=32",
        "models.policy.source.layers=1",
        "models.policy.source.heads=2",
        "models.policy.source.kv_heads=2",
        "models.policy.source.ffn_size=32",
        "data.train.args.size=64",
        "data.val.args.size=8",
        "stages.0.step.prompts=8",
        "stages.0.run.steps=3",
        "stages.0.gate.at_least=0",
        "stages.0.gate.when=end",
        "stages.1.step.prompts=4",
        "stages.1.step.samples_per_prompt=3",
        "stages.1.run.steps=4",
        "stages.1.run.checkpoint_every_steps=2",
    )
    return compile_spec(load(EXAMPLES / "quickstart.yaml", (*small, *sets)))
