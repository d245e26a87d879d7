"""What the builder hands out: models, roles and batches. Plain data: a name and the sections it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.spec.builder import Sections


@dataclass(frozen=True, slots=True)
class ModelHandle:
    owner: Sections
    name: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What an op or a data set gives: the start of an edge."""

    owner: Sections
    source: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class RoleHandle:
    """A role; the methods of its kind are its ops. `a >> b` is a weights edge.

    Every op takes the batches that it reads, `label=` for another call of the same op (left out, it is that of the
    batches) and attributes of the edge: `every_steps=`, `start_step=` …
    """

    owner: Sections
    name: str

    def __rshift__(self, other: RoleHandle) -> RoleHandle:
        self.owner.weights(self, other)
        return other


class GeneratorHandle(RoleHandle):
    __slots__ = ()

    def generate(self, *batches: Batch, label: str | None = None, **options: Any) -> Batch:
        """With a label, sampling keys among `options` are those that differ in that call."""
        return self.owner.generate(self.name, batches, label, options)


class TrainerHandle(RoleHandle):
    __slots__ = ()

    def log_probs(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "log_probs", batches, label, attributes)

    def values(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "values", batches, label, attributes)

    def update(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "update", batches, label, attributes)


class ScorerHandle(RoleHandle):
    __slots__ = ()

    def log_probs(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "log_probs", batches, label, attributes)

    def values(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "values", batches, label, attributes)


class RewardHandle(RoleHandle):
    __slots__ = ()

    def score(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "score", batches, label, attributes)

    def compare(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "compare", batches, label, attributes)


class EstimatorHandle(RoleHandle):
    __slots__ = ()

    def estimate(self, *batches: Batch, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "estimate", batches, label, attributes)
