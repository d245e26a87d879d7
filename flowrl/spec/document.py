"""What all documents of the language share: unknown keys are refused, values are strict and nothing changes later."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    StrictStr,
    Tag,
    model_serializer,
)
from pydantic_core import PydanticCustomError


class Document(BaseModel):
    """Base of every mapping a user may write. Each field has a docstring with unit and default."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )


DECLARED = "<declared>"
"""Where keys of packages are gathered before a block is checked; cannot be written itself."""


class Extensible(Document):
    """Base of a block to which packages may add keys for their backends."""

    declared: dict[str, Any] = Field(default_factory=dict, alias=DECLARED)
    """Written as keys of the block: those that a package declares for the role's backend. Default none."""

    @model_serializer(mode="wrap")
    def _inline(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        made: dict[str, Any] = handler(self)
        own: dict[str, Any] = made.pop(DECLARED, {}) | made.pop("declared", {})
        return made | own


def whole(value: Any) -> Any:
    """Before a literal of numbers: `true` and `1.0` equal 1 in Python, and are no stage or level."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("int_type", "no whole number")
    return value


Strings = Annotated[tuple[StrictStr, ...], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(ge=1)]
"""Of a link, bytes per second: of smaller ones times would not be finite."""
NotNegativeNumber = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Arguments = dict[str, Any]

Prompts = Annotated[int, Field(ge=1, le=1_000_000)]
"""Of a step. DAPO trains on 512 (arXiv 2503.14476); a million leaves three orders of magnitude, also to supervised
batches, and more is a slip of the hand whose figures would be taken for a plan."""
Samples = Annotated[int, Field(ge=1, le=65_536)]
"""Of a prompt. BroRL trains on 512 (arXiv 2510.01180); the rest is room for estimates of pass@k."""
Updates = Annotated[int, Field(ge=1, le=1024)]
"""Of a pass. Each is an instruction of its own in the plan; firings.py bounds updates × epochs."""
Epochs = Annotated[int, Field(ge=1, le=100)]
"""Of a step's batch. PPO makes 3 to 15 in its paper (arXiv 1707.06347); of many, each is instructions in the plan."""
Takes = Annotated[int, Field(ge=1, le=8)]
"""Of a session (compiler/emit/sessions.py): more parts cost more instructions than they save time."""
Layers = Annotated[int, Field(ge=1, le=4096)]
"""Of a model: as many as machine/config.py takes."""
Steps = Annotated[int, Field(ge=1, le=10_000_000)]
"""Of a run: one a second for a hundred days."""

SCALAR, LIST, MAPPING = FORMS = ("<scalar>", "<list>", "<mapping>")
"""Tags of unions whose members differ in form. They stand in pydantic's locations, where no key looks like them."""


def form(value: Any) -> str:
    if isinstance(value, dict | BaseModel):
        return MAPPING
    return LIST if isinstance(value, list | tuple) else SCALAR


Scalar, List, Mapping = Tag(SCALAR), Tag(LIST), Tag(MAPPING)
ByForm = Discriminator(form)
