"""The documents of the whole language: FlowDocument is a file, StageDocument one flow of it with all it inherits.

Everything a user may write stands here or in the modules this one re-exports (roles.py with blocks.py, sections.py).
The models check one document; what needs names of several sections is checked later.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flowrl.spec.blocks import (
    ClipDocument,
    CorrectionDocument,
    EngineDocument,
    ForwardDocument,
    GenerateDocument,
    GenerateOverrides,
    KlDocument,
    OptimizerDocument,
    UpdateDocument,
)
from flowrl.spec.document import ByForm, Document, Mapping, Scalar, Strings
from flowrl.spec.roles import (
    DEFAULT_KINDS,
    FLAVOURS,
    KINDS,
    EnvRole,
    EstimatorRole,
    FilterRole,
    FunctionRole,
    GeneratorRole,
    RewardRole,
    RoleDocument,
    Roles,
    ScorerRole,
    TrainerRole,
)
from flowrl.spec.sections import (
    AssumeDocument,
    ClusterDocument,
    DataDocument,
    DistributionDocument,
    EdgeDocument,
    GateDocument,
    GroupDocument,
    LayoutDocument,
    LengthDocument,
    LinksDocument,
    ModelDocument,
    PlacementDocument,
    PoolDocument,
    RefillDocument,
    RunDocument,
    ScheduleDocument,
    ShapeDocument,
    StepDocument,
)

Placement = Annotated[
    Annotated[Literal["auto", "colocated", "disaggregated"], Scalar] | Annotated[PlacementDocument, Mapping],
    ByForm,
]
Cluster = Annotated[Annotated[str, Scalar] | Annotated[ClusterDocument, Mapping], ByForm]
Edges = Annotated[tuple[EdgeDocument, ...], Field(strict=False)]


def _whole(value: Any) -> Any:
    """`true` and `1.0` equal 1 in Python, and are no version."""
    return value if type(value) is int else str(value)


class StageDocument(Document):
    """One flow of `stages:`; in `FlowSpec.stages` with everything it inherits."""

    name: str
    """Of the stage; a plain flow's only stage has the flow's name."""
    use: str | None = None
    """Preset it starts from. Default none, and none once resolved."""
    include: Strings = ()
    """YAML files with keys that this one overrides, later files over earlier ones, all over the preset. Paths start
    at the including file. Default none, and none once resolved."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Values for `{{ … }}`, over the file's. Default none."""
    cluster: Cluster = "local"
    """`local`, a shorthand such as 16xH100-80G, or a mapping. Default local."""
    models: dict[str, ModelDocument] = Field(default_factory=dict)
    """By name. Default none."""
    data: dict[str, DataDocument] = Field(default_factory=dict)
    """By name. Default none."""
    roles: Roles = Field(default_factory=dict)
    """By name. Default none."""
    edges: Edges = ()
    """In the order written. Default none."""
    step: StepDocument
    """The batch of one step."""
    schedule: ScheduleDocument = Field(default_factory=ScheduleDocument)
    """How far generation may run ahead. Default: not at all."""
    placement: Placement = "auto"
    """auto, colocated, disaggregated or explicit pools. Default auto."""
    run: RunDocument = Field(default_factory=RunDocument)
    """How long and with which outputs. Default: 100 steps, seed 0."""
    gate: GateDocument | None = None
    """Condition on a metric at the stage's end. Default none."""
    assume: dict[str, AssumeDocument] = Field(default_factory=dict)
    """{role.op: what the planner may assume}. Default none."""


class FlowDocument(Document):
    """A whole file: one flow, or `stages:` with what they share."""

    flowrl: Annotated[Literal[1], BeforeValidator(_whole)]
    """Version of the language: 1."""
    name: str
    """Of the flow: letters, digits, - and _."""
    use: str | None = None
    """Preset it starts from. Default none, and none once resolved."""
    include: Strings = ()
    """YAML files with keys that this one overrides, later files over earlier ones, all over the preset. Paths start
    at the including file. Default none, and none once resolved."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Values for `{{ … }}` in scalars. Default none."""
    cluster: Cluster = "local"
    """`local`, a shorthand such as 16xH100-80G, or a mapping. Default local."""
    models: dict[str, ModelDocument] = Field(default_factory=dict)
    """By name. Default none."""
    data: dict[str, DataDocument] = Field(default_factory=dict)
    """By name. Default none."""
    roles: Roles = Field(default_factory=dict)
    """By name. Default none."""
    edges: Edges = ()
    """In the order written. Default none."""
    step: StepDocument | None = None
    """The batch of one step. No default in a flow without stages."""
    schedule: ScheduleDocument = Field(default_factory=ScheduleDocument)
    """How far generation may run ahead. Default: not at all."""
    placement: Placement = "auto"
    """auto, colocated, disaggregated or explicit pools. Default auto."""
    run: RunDocument = Field(default_factory=RunDocument)
    """How long and with which outputs. Default: 100 steps, seed 0."""
    assume: dict[str, AssumeDocument] = Field(default_factory=dict)
    """{role.op: what the planner may assume}. Default none."""
    allow: Strings = ()
    """Codes of warnings that are not shown. Default none."""
    stages: Annotated[tuple[StageDocument, ...], Field(strict=False)] = ()
    """Flows run one after another. Default: none, the file is one flow."""


__all__ = [
    "DEFAULT_KINDS",
    "FLAVOURS",
    "KINDS",
    "AssumeDocument",
    "ClipDocument",
    "Cluster",
    "ClusterDocument",
    "CorrectionDocument",
    "DataDocument",
    "DistributionDocument",
    "Document",
    "EdgeDocument",
    "EngineDocument",
    "EnvRole",
    "EstimatorRole",
    "FilterRole",
    "FlowDocument",
    "ForwardDocument",
    "FunctionRole",
    "GateDocument",
    "GenerateDocument",
    "GenerateOverrides",
    "GeneratorRole",
    "GroupDocument",
    "KlDocument",
    "LayoutDocument",
    "LengthDocument",
    "LinksDocument",
    "ModelDocument",
    "OptimizerDocument",
    "Placement",
    "PlacementDocument",
    "PoolDocument",
    "RefillDocument",
    "RewardRole",
    "RoleDocument",
    "Roles",
    "RunDocument",
    "ScheduleDocument",
    "ScorerRole",
    "ShapeDocument",
    "StageDocument",
    "StepDocument",
    "TrainerRole",
    "UpdateDocument",
]
