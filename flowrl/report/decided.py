"""What a plan decided, as comments behind a flow: the key that each decision stands for, and what it chose."""

from __future__ import annotations

from flowrl.plan.plan import Plan


def render_decided(plan: Plan) -> str:
    """A line for each decision: `# roles.critic.engine.offload: stays on the devices  # D9, fits`."""
    several = len(plan.stages) > 1
    lines = ["# decided by the plan"]
    for stage in plan.stages:
        lines += [f"# stage {stage.name}"] if several else []
        lines += [
            f"# {d.override or d.what}: {d.chosen}  # {d.id}, {d.reason.replace('_', ' ')}" for d in stage.decisions
        ]
    return "\n".join(lines) + "\n"
