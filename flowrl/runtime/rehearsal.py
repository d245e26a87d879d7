"""A rehearsal: the plan made small, run for a few steps on this machine, and what has run of it.

Takes a Plan that fits; leaves a run folder as every run does. Models are made beside it and go when it ends. What
fails is told as in a run, at the flow's place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from flowrl.backends.small_models import Made, make_small
from flowrl.backends.small_models import Small as SmallModel
from flowrl.graph.graph import Model
from flowrl.machine.shape import ModelShape
from flowrl.placement.shapes import handed_on, shapes_of
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.launchers.choose import AUTO, INLINE, RAY, choose
from flowrl.runtime.rehearse import (
    EPISODE_TOKENS,
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    VLLM,
    Change,
    Small,
    at_folders,
    shrink,
    source_of,
)
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.runfile import TRACE
from flowrl.runtime.session import SessionOptions

LAYERS, HEADS, KV_HEADS, HEAD_WIDTH = 2, 2, 2, 32
"""Heads of 32 are what vLLM has on a CPU; there are more of them where tp asks for more."""


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    small: Small = field(default_factory=Small)
    launcher: str = AUTO
    runs: Path = Path("runs")
    folder: Path | None = None
    """Where the flow's relative paths start; None: the plan's folder, from here."""
    check: Callable[[Plan], None] = lambda plan: None
    """Asked of the small plan before anything starts; raises what a run would."""
    on_changes: Callable[[tuple[Change, ...]], None] = lambda changes: None
    """Told what is not as in the plan, before it runs."""
    session: SessionOptions = field(default_factory=SessionOptions)


@dataclass(frozen=True, slots=True)
class Ran:
    """An instruction of the plan, and how it went."""

    stage: str
    instruction: str
    pool: str
    steps: tuple[int, ...]
    """In which it worked; none: its turn was in no step of the rehearsal."""
    seconds: float
    """The shortest that it took; 0 where it has not run."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    folder: Path
    launcher: str
    changes: tuple[Change, ...]
    ran: tuple[Ran, ...]


def rehearse(plan: Plan, options: RehearsalOptions | None = None) -> Rehearsal:
    """Raises FlowError as `run` does."""
    options = options or RehearsalOptions()
    small = _as_installed(options)
    made, changes = shrink(plan, small)
    options.check(made)
    folder = (options.folder or Path(plan.folder)).resolve()
    with tempfile.TemporaryDirectory(prefix="flowrl-rehearsal-") as models:
        folders, told = _models(plan, folder, Path(models))
        changes = (*changes, *told)
        options.on_changes(changes)
        made = at_folders(made, folders)
        launcher = choose(made, options.launcher)
        result = run(made, RunOptions(runs=options.runs, launcher=launcher, folder=folder, session=options.session))
    return Rehearsal(result.folder, launcher, changes, tuple(_ran(made, result.folder)))


def _as_installed(options: RehearsalOptions) -> Small:
    """One rank a role where they share a process: where Ray is not there to start more."""
    alone = options.launcher == INLINE or (options.launcher == AUTO and find_spec(RAY) is None)
    return replace(options.small, ranks=1) if alone and options.small.engine != VLLM else options.small


def _models(plan: Plan, folder: Path, out: Path) -> tuple[dict[str, str], tuple[Change, ...]]:
    """A folder for each model that comes from outside, by source, and what they have become."""
    folders: dict[str, str] = {}
    told: list[Change] = []
    earlier: dict[str, ModelShape] = {}
    talks = any(stage.programs.together for stage in plan.stages)
    sees = any(slot.slot == "images" for stage in plan.stages for op in stage.graph.ops for slot in op.inputs)
    for stage in plan.stages:
        shapes = shapes_of(stage.graph, str(folder), earlier)
        earlier |= handed_on(stage.name, stage.graph, shapes)
        used = {role.model for role in stage.graph.roles}
        for model in (m for m in stage.graph.models if m.name in used and m.name not in stage.starts_from):
            key = source_of(model)
            if key in folders:
                continue
            place = out / f"model{len(folders)}"
            shape, sizes = shapes[model.name], _sizes(stage, model, shapes[model.name], talks, sees)
            made = make_small(model, folder, sizes, place, stage.run.seed)
            folders[key] = str(place)
            told.append(Change("shrunk", f"models.{model.name}", _told(shape, model), _told_small(sizes, made)))
    return folders, tuple(told)


def _sizes(stage: StagePlan, model: Model, shape: ModelShape, talks: bool, sees: bool) -> SmallModel:
    """Heads that every tp of the plan divides, in the groups that the model has. `talks`: whether some stage, which may
    go on with this model, plays episodes. `sees`: whether some prompts bring images."""
    roles = {role.name for role in stage.graph.roles if role.model == model.name}
    tp = max((e.layout.tp for pool in stage.pools for e in pool.roles if e.role in roles), default=1)
    heads = max(HEADS, tp)
    grouped = shape.kv_heads < shape.heads
    kv_heads = max(1, heads // 2) if grouped else heads
    return SmallModel(
        layers=min(LAYERS, shape.layers),
        hidden=heads * HEAD_WIDTH,
        heads=heads,
        kv_heads=kv_heads,
        ffn=2 * heads * HEAD_WIDTH,
        positions=PROMPT_TOKENS + (EPISODE_TOKENS if talks else RESPONSE_TOKENS),
        sees=sees and shape.vision_parameters > 0,
    )


def _told(shape: ModelShape, model: Model) -> str:
    sizes = f"{shape.layers} layers × {shape.hidden:,}, {shape.heads} heads ({shape.kv_heads} of keys)"
    return f"{shape.architecture}, {sizes}, {model.dtype}"


def _told_small(sizes: SmallModel, made: Made) -> str:
    told = f"{sizes.layers} layers × {sizes.hidden}, {sizes.heads} heads ({sizes.kv_heads} of keys)"
    return f"{made.architecture}, {told}, float32, tokenizer {made.tokenizer}"


def _ran(plan: Plan, run_folder: Path) -> Iterator[Ran]:
    """Each instruction of the program, stage after stage."""
    spans = _spans(run_folder)
    for stage in plan.stages:
        prefix = "" if len(plan.stages) == 1 else f"{stage.name}/"
        for instruction in stage.programs.instructions:
            mine = spans.get((prefix + instruction.pool, instruction.id), {})
            steps = tuple(sorted(mine))
            yield Ran(stage.name, instruction.id, instruction.pool, steps, min(mine.values(), default=0.0))


def _spans(run_folder: Path) -> Mapping[tuple[str, str], dict[int, float]]:
    """Seconds by pool and instruction, and by step."""
    events = json.loads((run_folder / TRACE).read_text(encoding="utf-8"))["traceEvents"]
    pools = {e["pid"]: e["args"]["name"].removeprefix("pool ") for e in events if e["name"] == "process_name"}
    spans: dict[tuple[str, str], dict[int, float]] = {}
    for event in (e for e in events if e["ph"] == "X"):
        key = (pools[event["pid"]], event["name"])
        spans.setdefault(key, {})[int(event["args"]["step"])] = event["dur"] / 1e6
    return spans
