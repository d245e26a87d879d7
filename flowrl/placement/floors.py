"""Bytes that a role needs on a device whatever it does, in closed form: what a search leaves out layouts by unseen.

Takes a role, the shape of its model and a layout; gives bytes. Each is part of what the ledger has (memory/megatron.py,
memory/weights.py), the mean over the stages of a pipeline, so no layout that fits is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl.graph.graph import Role
from flowrl.machine.profile import Profile
from flowrl.machine.shape import DTYPE_BYTES, ModelShape
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.placed import share_of
from flowrl.plan.plan import Layout

MOMENTS = {"sgd": 0, "adamw_8bit": 2}
"""Bytes of optimizer states of a parameter, at least; of others two float32 moments."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What of a role its least bytes depend on."""

    role: Role
    shape: ModelShape
    dtype_bytes: int
    trains_all: bool
    """Whether every weight has a gradient and states: a trainer without an adapter."""
    _shared: int = field(init=False, repr=False)
    _experts: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", self.shape.shared_parameters_total)
        object.__setattr__(self, "_experts", self.shape.expert_parameters_total)

    def bytes(self, layout: Layout) -> float:
        """0 for backends whose every rank shares all states: their layouts are few."""
        if self.role.backend == "megatron":
            return self._megatron(layout)
        return self._engine(layout) if self.role.backend in ENGINES else 0.0

    def limit(self, device_bytes: int, profile: Profile) -> int:
        """What of a device the role may take; an engine its share."""
        if self.role.backend not in ENGINES:
            return device_bytes
        return int(share_of(self.role) * (device_bytes - profile.memory.driver_bytes))

    def _megatron(self, layout: Layout) -> float:
        shared, experts = self._shared, self._experts
        ranks, engine = layout.dp * layout.cp, self.role.engine
        asked = engine.expert_tensor_parallel
        inside = min(asked, layout.tp) if asked is not None else layout.tp if layout.ep <= ranks else 1
        here = (shared / layout.tp + experts / (layout.ep * inside)) / layout.pp
        if not self.trains_all:
            return self.dtype_bytes * here
        gradient = DTYPE_BYTES[engine.gradient_dtype]
        copies = layout.tp * min(engine.shard_devices or ranks, ranks)
        spread = (shared / copies + experts / max(layout.ep * inside, copies)) / layout.pp
        name = self.role.optimizer.name if self.role.optimizer is not None else "adamw"
        states = MOMENTS.get(name, 8) + (4 if self.dtype_bytes < 4 else 0)
        return (self.dtype_bytes + gradient) * here + (1.0 - engine.optimizer_offload) * states * spread

    def _engine(self, layout: Layout) -> float:
        each = 1 if self.role.engine.weights_dtype == "fp8" else self.dtype_bytes
        experts = self._experts
        layers = self._shared - self.shape.root_parameters
        cut = layers / layout.tp + experts / max(layout.tp, layout.ep)
        return each * cut / layout.pp
