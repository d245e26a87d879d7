"""What the builder hands out: models, roles, batches and columns. Plain data: a name and the sections it belongs to."""

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
class Column:
    """One column of what an op or a data set gives: for `inputs=`, `by=` and `gate`."""

    batch: Batch
    field: str

    @property
    def name(self) -> str:
        """`role.field`, `role@label.field` or `data.NAME.field`."""
        role = self.batch.role
        return f"{role}.{self.field}" if self.batch.label is None else f"{role}@{self.batch.label}.{self.field}"

    @property
    def metric(self) -> str:
        """`role.field` or `role.field@label`, as metrics are called."""
        plain = f"{self.batch.role}.{self.field}"
        return plain if self.batch.label is None else f"{plain}@{self.batch.label}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What an op or a data set gives: the start of an edge.

    `a & b` joins two by sample (an op takes several batches as well), `a["rewards"]` is a column.
    """

    owner: Sections
    source: str
    label: str | None = None

    def __and__(self, other: Batch | Joined) -> Joined:
        return Joined((self,)) & other

    def __getitem__(self, field: str) -> Column:
        return Column(self, field)

    @property
    def role(self) -> str:
        """The role whose op gives it; `data.NAME` of a data set."""
        head = self.source.partition("@")[0]
        return head if head.startswith("data.") else head.partition(".")[0]


@dataclass(frozen=True, slots=True)
class DataSet(Batch):
    """A data set; in `mix=` it stands for its name."""

    @property
    def name(self) -> str:
        return self.source.removeprefix("data.")


@dataclass(frozen=True, slots=True)
class Joined:
    """Several batches, joined by sample: one edge with several ends."""

    batches: tuple[Batch, ...]

    def __and__(self, other: Batch | Joined) -> Joined:
        return Joined((*self.batches, *(other.batches if isinstance(other, Joined) else (other,))))


@dataclass(frozen=True, slots=True)
class RoleHandle:
    """A role; the methods of its kind are its ops. `a >> b` is a weights edge.

    Every op takes the batches that it reads, `label=` for another call of the same op (left out, it is that of the
    batches), `inputs=` to choose columns (`{slot: batch["field"]}`) and attributes of the edge: `every_steps=`,
    `start_step=`, `fields=`, `remove=True` …
    """

    owner: Sections
    name: str

    def __rshift__(self, other: RoleHandle) -> RoleHandle:
        self.owner.weights(self, other)
        return other


class GeneratorHandle(RoleHandle):
    __slots__ = ()

    def generate(self, *batches: Batch | Joined, label: str | None = None, **options: Any) -> Batch:
        """With a label, sampling keys among `options` are those that differ in that call."""
        return self.owner.generate(self.name, batches, label, options)

    def interact(self, env: EnvHandle, label: str | None = None, **options: Any) -> Batch:
        """Turns with the environment, `generate <-> env.step`; gives this generator's own samples."""
        return self.owner.interact(env, (self,), label, options)[0]


class TrainerHandle(RoleHandle):
    __slots__ = ()

    def log_probs(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "log_probs", batches, label, attributes)

    def values(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "values", batches, label, attributes)

    def update(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "update", batches, label, attributes)


class ScorerHandle(RoleHandle):
    __slots__ = ()

    def log_probs(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "log_probs", batches, label, attributes)

    def values(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "values", batches, label, attributes)


class RewardHandle(RoleHandle):
    __slots__ = ()

    def score(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "score", batches, label, attributes)

    def compare(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "compare", batches, label, attributes)


class EstimatorHandle(RoleHandle):
    __slots__ = ()

    def estimate(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "estimate", batches, label, attributes)


class FilterHandle(RoleHandle):
    __slots__ = ()

    def select(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        """The rows that stay."""
        return self.owner.call(self.name, "select", batches, label, attributes)


class EnvHandle(RoleHandle):
    __slots__ = ()

    def reset(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        """First observations, one for each prompt."""
        return self.owner.call(self.name, "reset", batches, label, attributes)

    def interact(self, *generators: GeneratorHandle, label: str | None = None, **options: Any) -> tuple[Batch, ...]:
        """Turns with several generators, in the order of the environment; gives the samples of each."""
        return self.owner.interact(self, generators, label, options)


class FunctionHandle(RoleHandle):
    __slots__ = ()

    def call(self, *batches: Batch | Joined, label: str | None = None, **attributes: Any) -> Batch:
        return self.owner.call(self.name, "call", batches, label, attributes)
