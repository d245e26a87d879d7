"""A plan for many GPUs → one for this machine: the same stages, roles, pools and instructions, small in everything.

Pure: takes a Plan and what is allowed here, gives a Plan and each change in words. Makes no model and runs nothing
(runtime/rehearsal.py does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from msgspec.structs import replace

from flowrl.backends.registry import backend_of
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op, Role
from flowrl.graph.params import (
    AskParams,
    DataParams,
    EngineParams,
    EnvParams,
    FilterParams,
    GenerateParams,
    ScoreParams,
    UpdateParams,
)
from flowrl.machine.cluster import Cluster
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.plan.plan import Layout, Plan, Pool, RolePlacement, StagePlan
from flowrl.program.program import Instruction, Program, Rows

CPU, HF, VLLM, FSDP = "cpu", "hf", "vllm", "fsdp"
PROMPTS, SAMPLES, VALIDATED = 8, 4, 8
PROMPT_TOKENS, RESPONSE_TOKENS = 128, 32
EPISODE_TOKENS, TURN_TOKENS, TURNS = 512, 8, 3
"""Of a generator that plays with an environment: of an episode, of a turn, and turns of an agent."""
DENOISE_STEPS, SIDE_PIXELS = 6, 32
"""Of a denoiser."""
NODE = "node0"


@dataclass(frozen=True, slots=True)
class Small:
    """How small a rehearsal is."""

    steps: int = 2
    """Of each stage."""
    ranks: int = 2
    """Most of a role."""
    engine: str = HF
    """What generates: hf, or vllm where its CPU build is installed."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Something that is not as in the plan."""

    kind: str
    """shrunk or replaced."""
    of: str
    """A key of the flow, or a role, model or pool."""
    was: str
    now: str


@dataclass(slots=True)
class Changes:
    """What has been changed so far, each once."""

    told: dict[Change, None] = field(default_factory=dict[Change, None])

    def shrunk(self, of: str, was: object, now: object) -> None:
        if was != now:
            self.told[Change("shrunk", of, f"{was}", f"{now}")] = None

    def replaced(self, of: str, was: object, now: object) -> None:
        if was != now:
            self.told[Change("replaced", of, f"{was}", f"{now}")] = None


def shrink(plan: Plan, small: Small) -> tuple[Plan, tuple[Change, ...]]:
    """The plan for this machine's CPU, models but for their folders (`at_folders`), and what is changed."""
    changes = Changes()
    several = len(plan.stages) > 1
    stages = tuple(_Stage(s, small, changes, f"{s.name}: " if several else "").shrunk() for s in plan.stages)
    slots = max((sum(len(pool.devices) for pool in stage.pools) for stage in stages), default=1)
    group = node_group(DEVICE_CARDS[CPU], "nodes", 1, max(1, slots))
    was = " + ".join(f"{g.nodes * g.devices_per_node} × {g.device.name}" for g in plan.cluster.groups)
    changes.replaced("cluster", was, f"{slots} × {CPU}")
    run = replace(plan.run, steps=min(plan.run.steps, small.steps), loggers=())
    cluster = Cluster(name="rehearsal", groups=(group,))
    made = replace(plan, name=f"{plan.name}-rehearsal", cluster=cluster, stages=stages, run=run, diagnostics=())
    return made, tuple(changes.told)


def at_folders(plan: Plan, folders: Mapping[str, str]) -> Plan:
    """The plan with models read from `folders`, by source; those that start from an earlier stage stay."""

    def graph(of: Graph) -> Graph:
        models = (
            replace(m, source=folders[key], inline=None) if (key := source_of(m)) in folders else m for m in of.models
        )
        return replace(of, models=tuple(models))

    return replace(plan, stages=tuple(replace(stage, graph=graph(stage.graph)) for stage in plan.stages))


def source_of(model: Any) -> str:
    """What models with equal weights have in common."""
    return f"{model.source} {sorted(model.inline.items()) if model.inline else ''} {model.head}"


class _Stage:
    """One stage."""

    def __init__(self, stage: StagePlan, small: Small, changes: Changes, prefix: str) -> None:
        self._stage = stage
        self._prefix = prefix
        self._small = small
        self._changes = changes
        step = stage.graph.step
        wanted = min(step.prompts, max(PROMPTS, step.updates))
        self._prompts = min(step.prompts, -(-wanted // step.updates) * step.updates)
        self._samples = min(step.samples_per_prompt, max(SAMPLES, _least_samples(stage.graph)))
        self._steps = min(stage.run.steps, small.steps)

    def shrunk(self) -> StagePlan:
        stage, changes = self._stage, self._changes
        graph, step, run = stage.graph, stage.graph.step, stage.run
        changes.shrunk(f"{self._prefix}step.prompts", step.prompts, self._prompts)
        changes.shrunk(f"{self._prefix}step.samples_per_prompt", step.samples_per_prompt, self._samples)
        changes.shrunk(f"{self._prefix}run.steps", run.steps, self._steps)
        if stage.gate is not None:
            changes.replaced(f"{self._prefix}gate", stage.gate.metric, "none")
        if run.loggers:
            changes.replaced("run.loggers", ", ".join(run.loggers), "none")
        shrunk_graph = replace(
            graph,
            step=replace(step, prompts=self._prompts, samples_per_prompt=self._samples),
            models=tuple(replace(model, dtype="float32") for model in graph.models),
            roles=tuple(self._role(role) for role in graph.roles),
            ops=tuple(self._op(op) for op in graph.ops),
            edges=tuple(map(self._edge, graph.edges)),
            declared=tuple(map(self._edge, graph.declared)),
        )
        return replace(
            stage,
            graph=shrunk_graph,
            edges=shrunk_graph.edges,
            pools=tuple(self._pools()),
            programs=self._program(stage.programs),
            run=replace(run, steps=self._steps, loggers=()),
            gate=None,
        )

    def _role(self, role: Role) -> Role:
        backend = self._backend(role)
        self._changes.replaced(f"roles.{role.name}.backend", role.backend, backend)
        optimizer = role.optimizer
        if optimizer is not None and optimizer.name == "adamw_8bit":
            optimizer = replace(optimizer, name="adamw")
            self._changes.replaced(f"roles.{role.name}.optimizer", "adamw_8bit", "adamw")
        if role.model is None:
            return replace(role, optimizer=optimizer)
        default = EngineParams()
        left = [name for name in default.__struct_fields__ if getattr(role.engine, name) != getattr(default, name)]
        for name in (n for n in left if n not in ("recompute", "offload")):
            self._changes.replaced(f"roles.{role.name}.engine.{name}", getattr(role.engine, name), "its default")
        engine = replace(default, recompute=role.engine.recompute, offload=role.engine.offload)
        return replace(role, backend=backend, optimizer=optimizer, engine=engine)

    def _backend(self, role: Role) -> str | None:
        """What does the role's work here; a role without a model keeps its own."""
        if role.model is None:
            return role.backend
        asks = any(op.role == role.name and isinstance(op.params, AskParams) for op in self._stage.graph.ops)
        if role.kind is Kind.GENERATOR and self._stage.graph.model(role.model).head == "denoiser":
            return role.backend
        if role.kind is Kind.GENERATOR or asks:
            return self._small.engine
        return FSDP if role.kind in (Kind.TRAINER, Kind.SCORER, Kind.REWARD) else backend_of(role)

    def _op(self, op: Op) -> Op:
        return replace(op, params=self._params(op, op.params), start_step=min(op.start_step, 1))

    def _params(self, op: Op, params: Any) -> Any:
        if isinstance(params, DataParams):
            return self._data(op, params)
        if isinstance(params, GenerateParams):
            return self._generate(op, params)
        if isinstance(params, EnvParams):
            return self._env(op, params)
        if isinstance(params, UpdateParams):
            return replace(params, extra={})
        if isinstance(params, ScoreParams) and params.flavour == "model":
            return replace(params, extra={})
        return params

    def _data(self, op: Op, params: DataParams) -> DataParams:
        tokens = min(params.max_prompt_tokens or PROMPT_TOKENS, PROMPT_TOKENS)
        prompts = VALIDATED if params.prompts is None else self._drawn(params.prompts)
        self._changes.shrunk(f"{op.id}.max_prompt_tokens", params.max_prompt_tokens or "any", tokens)
        self._changes.replaced(f"{op.id}.on_long", params.on_long, "truncate")
        if params.prompts is None:
            self._changes.shrunk(f"rows of {op.id}", "all", prompts)
        return replace(params, max_prompt_tokens=tokens, on_long="truncate", prompts=prompts)

    def _drawn(self, prompts: int) -> int:
        """Prompts of a firing, of which there may be more than are trained on."""
        return -(-prompts * self._prompts // self._stage.graph.step.prompts)

    def _env(self, op: Op, params: EnvParams) -> EnvParams:
        turns = min(params.max_turns, TURNS)
        self._changes.shrunk(f"{op.role}.max_turns", params.max_turns, turns)
        return replace(params, max_turns=turns)

    def _generate(self, op: Op, params: GenerateParams) -> GenerateParams:
        talks = any(edge.kind is EdgeKind.INTERACTION and edge.source == op.id for edge in self._stage.graph.edges)
        most = EPISODE_TOKENS if talks else RESPONSE_TOKENS
        tokens = min(params.max_response_tokens, most)
        self._changes.shrunk(f"{op.id}.max_response_tokens", params.max_response_tokens, tokens)
        bounds = {"max_context_tokens": PROMPT_TOKENS + most, "max_turn_tokens": TURN_TOKENS if talks else most}
        limits = {
            name: bound if limit is None else min(limit, bound)
            for name, bound in bounds.items()
            if (limit := getattr(params, name)) is not None or talks
        }
        samples = min(params.samples_per_prompt, SAMPLES)
        extra = self._denoised(op, params.extra)
        return replace(params, max_response_tokens=tokens, samples_per_prompt=samples, extra=extra, **limits)

    def _denoised(self, op: Op, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Of a denoiser fewer steps of smaller images; what a package declares is left out."""
        kept = {key: value for key, value in extra.items() if key in ("eta", "noise_per")}
        bounds = {"denoise_steps": DENOISE_STEPS, "height": SIDE_PIXELS, "width": SIDE_PIXELS}
        for key in (key for key in bounds if key in extra):
            kept[key] = min(extra[key], bounds[key])
            self._changes.shrunk(f"{op.id}.{key}", extra[key], kept[key])
        return kept

    def _edge(self, edge: Edge) -> Edge:
        """Weights travel through this machine's memory, whatever the plan's devices have."""
        if edge.transport is not None:
            self._changes.replaced(f"transport of `{edge.id}`", edge.transport, "this machine's memory")
        start = None if edge.start_step is None else min(edge.start_step, 1)
        return replace(edge, start_step=start, transport=None)

    def _pools(self) -> Iterator[Pool]:
        start = 0
        for pool in self._stage.pools:
            count = min(len(pool.devices), self._small.ranks)
            self._changes.shrunk(f"devices of pool {pool.name}", len(pool.devices), count)
            devices = tuple(f"{NODE}/{start + place}" for place in range(count))
            start += count
            roles = tuple(self._placed(pool, entry, count) for entry in pool.roles)
            device = CPU if pool.devices else pool.device
            yield replace(pool, devices=devices, device=device, roles=roles)

    def _placed(self, pool: Pool, entry: RolePlacement, devices: int) -> RolePlacement:
        role = self._stage.graph.role(entry.role)
        ranks = devices if pool.devices else min(entry.layout.devices, self._small.ranks)
        tp = entry.layout.tp if self._backend(role) == VLLM and ranks % entry.layout.tp == 0 else 1
        layout = Layout(dp=ranks // tp, tp=tp)
        self._changes.shrunk(f"layout of {entry.role}", _layout(entry.layout), _layout(layout))
        recompute = "full" if entry.recompute == "selective" else entry.recompute
        self._changes.replaced(f"recompute of {entry.role}", entry.recompute, recompute)
        return replace(entry, layout=layout, recompute=recompute, memory_share=None)

    def _program(self, program: Program) -> Program:
        streams = (replace(s, instructions=tuple(map(self._instruction, s.instructions))) for s in program.streams)
        return replace(program, streams=tuple(streams))

    def _instruction(self, instruction: Instruction) -> Instruction:
        """The same, of as many parts of fewer rows. What begins late begins in the second step."""
        if instruction.start_step > 1:
            self._changes.shrunk(f"first step of `{instruction.id}`", instruction.start_step + 1, 2)
        rows = instruction.rows
        if rows != Rows():
            stop = None if rows.stop is None else self._scaled(rows.stop)
            rows = replace(rows, start=self._scaled(rows.start), stop=stop)
        return replace(instruction, rows=rows, start_step=min(instruction.start_step, 1))

    def _scaled(self, prompts: int) -> int:
        return prompts * self._prompts // self._stage.graph.step.prompts


def _least_samples(graph: Graph) -> int:
    """Of a prompt, so that every filter which keeps a share of each group's keeps one."""
    filters = (op.params for op in graph.ops if isinstance(op.params, FilterParams))
    return max((ceil(1 / f.keep_top) for f in filters if f.keep_top is not None and f.within == "group"), default=1)


def _layout(layout: Layout) -> str:
    axes = (("dp", layout.dp), ("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep))
    return " ".join(f"{name}{size}" for name, size in axes if size > 1) or "1 device"
