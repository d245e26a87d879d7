"""What environments and generators say to each other while episodes are played: texts and ids, no tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Metrics
from flowrl.backends.envs.protocol import Observation


@dataclass(frozen=True, slots=True)
class Heard:
    """What an agent shall answer next in the episode of sample `id`."""

    id: int
    observation: Observation | None
    """None: the prompt that its call of generate has."""
    first: bool = False
    """Whether it is the first message of the episode: the prompt, whose length the data set limits."""


Next = dict[str, list[Heard]]
"""What agents shall answer, by agent."""


@dataclass(frozen=True, slots=True)
class Said:
    """What it said."""

    id: int
    text: str | None
    """None: nothing, for what it heard leaves no room in its limits. The episode ends here."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is known when all episodes are over. Batches hold the fields of the environment's step, one row for each
    sample that stays, by agent."""

    rows: dict[str, Batch]
    metrics: Metrics = field(default_factory=dict[str, tuple[float, float]])
