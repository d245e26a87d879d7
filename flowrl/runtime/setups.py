"""What ranks and calls are made from: Plan + stage → RankSetup for each rank, Call for each firing.

Both launchers use it.
Also where models lie in a run's folder. Starts nothing and knows no launcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from flowrl.backends.contract import Call, Gather, RankSetup
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Graph, Kind, Model, Op, Role
from flowrl.graph.params import DataParams, EnvParams, ForwardParams, GenerateParams, ScoreParams, UpdateParams
from flowrl.graph.weights import carries_adapter
from flowrl.plan.plan import Layout, Plan, Pool, RolePlacement, StagePlan
from flowrl.runtime.launchers.contract import Work

HOST = "host"
"""The pool of data sets, which need no placement."""


def initial_model_folder(run_folder: Path, stage: str, model: str) -> Path:
    """Where an inline model of a stage is made."""
    return run_folder / "models" / "initial" / stage / model


def trained_model_folder(run_folder: Path, stage: str, role: str) -> Path:
    """Where a stage leaves a trainer's weights, a Hugging Face folder, for the stages after it."""
    return run_folder / "models" / "trained" / stage / role


def model_folders(plan: Plan, stage: StagePlan, run_folder: Path) -> dict[str, Path]:
    """The folder with the initial weights of each model that a role of the stage uses. Made at the first call."""
    used = {role.model for role in stage.graph.roles if role.model is not None}
    return {
        model.name: _model_folder(_with_source(model, stage, run_folder), plan, stage, run_folder)
        for model in stage.graph.models
        if model.name in used
    }


def _with_source(model: Model, stage: StagePlan, run_folder: Path) -> Model:
    """The model, reading the folder that an earlier stage left if it starts from one."""
    start = stage.starts_from.get(model.name)
    if start is None:
        return model
    earlier, role = start.removeprefix("stages.").split(".", 1)
    return structs.replace(model, source=str(trained_model_folder(run_folder, earlier, role)), inline=None)


def _model_folder(model: Model, plan: Plan, stage: StagePlan, run_folder: Path) -> Path:
    from flowrl.backends.models import materialise

    out = initial_model_folder(run_folder, stage.name, model.name)
    if model.inline is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    return materialise(model, Path(plan.folder), out, stage.run.seed)


@dataclass(frozen=True, slots=True)
class RoleSetup:
    """A role with the setups of its ranks, in order; `devices` are the pool's."""

    role: str
    pool: str
    layout: Layout
    ranks: tuple[RankSetup, ...]
    devices: tuple[str, ...] = field(default=())


def role_setups(plan: Plan, stage: StagePlan, folders: Mapping[str, Path], threads: int = 1) -> tuple[RoleSetup, ...]:
    """Every role of the stage that has an op. `store_port` is for the launcher to fill in (`dataclasses.replace`)."""
    placed = [(pool, entry) for pool in stage.pools for entry in pool.roles]
    names = {entry.role for _, entry in placed}
    unplaced = [RolePlacement(role=role.name, layout=Layout()) for role in stage.graph.roles if role.name not in names]
    host = Pool(name=HOST, devices=(), device=HOST, roles=())
    return tuple(
        RoleSetup(
            role=entry.role,
            pool=pool.name,
            layout=entry.layout,
            ranks=tuple(
                _rank_setup(plan, stage, folders, pool, entry, r, threads) for r in range(entry.layout.devices)
            ),
            devices=pool.devices,
        )
        for pool, entry in [*placed, *((host, entry) for entry in unplaced)]
        if any(op.role == entry.role for op in stage.graph.ops)
    )


def _rank_setup(
    plan: Plan,
    stage: StagePlan,
    folders: Mapping[str, Path],
    pool: Pool,
    entry: RolePlacement,
    rank: int,
    threads: int,
) -> RankSetup:
    role, layout = _as_placed(stage.graph.role(entry.role), entry), entry.layout
    model = None if role.model is None else stage.graph.model(role.model)
    return RankSetup(
        role=role,
        model=model,
        model_folder=_folder_of(stage.graph, role, folders),
        layout=layout,
        rank=rank,
        world_size=layout.devices,
        device=_device(plan, pool, rank),
        threads=threads,
        seed=stage.run.seed,
        folder=Path(plan.folder),
        max_tokens=longest_sample_tokens(stage.graph),
        steps=stage.run.steps,
        ops=tuple(_op_as_placed(op, entry) for op in stage.graph.ops if op.role == role.name),
        adapter_edges=frozenset(
            edge.id for edge in stage.edges if edge.source == role.name and carries_adapter(stage.graph, edge)
        ),
    )


def trainers_beside(stage: StagePlan, setups: Sequence[RoleSetup]) -> dict[str, str]:
    """Scorers that work with a trainer's frozen base, by name, and that trainer: it stays on its devices in their pool,
    laid out as they are, so its ranks hold what theirs would. Elsewhere a scorer has a copy of its own."""
    places = {entry.role: (pool.name, entry) for pool in stage.pools for entry in pool.roles}
    running = {setup.role for setup in setups}
    found: dict[str, str] = {}
    for role in stage.graph.roles:
        if role.name not in running or role.shares not in running or role.shares not in places:
            continue
        (pool, own), (other, trainer) = places[role.name], places[role.shares]
        if pool == other and own.layout == trainer.layout and not trainer.offloaded:
            found[role.name] = role.shares
    return found


def owners_first(setups: Sequence[RoleSetup], beside: Collection[str]) -> list[RoleSetup]:
    """The setups, those of roles in `beside` last: they are made with ranks of others."""
    return sorted(setups, key=lambda setup: setup.role in beside)


def _folder_of(graph: Graph, role: Role, folders: Mapping[str, Path]) -> Path | None:
    """The folder of the role's model; of a data set that drops long prompts the one of the model that reads them, whose
    tokenizer says how long they are."""
    if role.model is not None:
        return folders[role.model]
    own = next((op for op in graph.ops if op.role == role.name and isinstance(op.params, DataParams)), None)
    if own is None or not drops_long(own.params):
        return None
    readers = (op for op in graph.ops if any(i.slot == "prompt" and i.source == own.id for i in op.inputs))
    models = (model for op in readers if (model := graph.role(op.role).model) is not None)
    return next((folders[model] for model in models), None)


def drops_long(params: object) -> bool:
    """Whether a data set, or a source of a mix, leaves out long prompts."""
    if not isinstance(params, DataParams):
        return False
    return params.on_long == "drop" or any(drops_long(source) for source in params.sources.values())


def _as_placed(role: Role, entry: RolePlacement) -> Role:
    """The role with what placement chose for its engine: a rank reads it there and knows no plan."""
    share = role.engine.kv_fraction if entry.memory_share is None else entry.memory_share
    return structs.replace(role, engine=structs.replace(role.engine, recompute=entry.recompute, kv_fraction=share))


def _op_as_placed(op: Op, entry: RolePlacement | None) -> Op:
    """The op with the micro-batch that placement chose for its role, if it has micro-batches: a rank reads it there."""
    size = None if entry is None else entry.micro_batch_tokens
    if size is None or not isinstance(op.params, UpdateParams | ForwardParams | ScoreParams):
        return op
    return structs.replace(op, params=structs.replace(op.params, micro_batch_tokens=size))


def _device(plan: Plan, pool: Pool, rank: int) -> str:
    """The torch device of a rank: `cpu`, or the pool's device by its place on its node (`node0/3` → `cuda:3`)."""
    on_cpu = {group.device.name for group in plan.cluster.groups if group.device.is_cpu}
    if not pool.devices or pool.device in on_cpu:
        return "cpu"
    return f"cuda:{pool.devices[rank].rsplit('/', 1)[-1]}"


def located(setup: RoleSetup, device: str) -> RoleSetup:
    """The setup for processes that have another working directory: paths from the root."""
    ranks = tuple(
        replace(
            rank,
            device=device,
            folder=rank.folder.resolve(),
            model_folder=None if rank.model_folder is None else rank.model_folder.resolve(),
        )
        for rank in setup.ranks
    )
    return replace(setup, ranks=ranks)


def call_of(stage: StagePlan, work: Work) -> Call:
    """The call that a `run` firing makes on each rank of its role."""
    name = work.firing.instruction.op
    if name is None:
        raise InternalError(f"`{work.firing.instruction.id}` runs no op")
    written = stage.graph.op(name)
    entry = next((each for pool in stage.pools for each in pool.roles if each.role == written.role), None)
    op = _op_as_placed(written, entry)
    data = _limits_of_data(stage.graph, op)
    return Call(
        op=op,
        step=work.firing.step,
        seed=stage.run.seed,
        samples_per_prompt=samples_per_prompt(stage.graph, op),
        max_prompt_tokens=None if data is None else data.max_prompt_tokens,
        on_long="error" if data is None else data.on_long,
        max_response_tokens=_max_response_tokens(stage.graph, op),
        joins=work.joins,
    )


def take_of(work: Work, rank: int) -> tuple[int, int, bool, Gather | None]:
    """What a take asks of a rank: its number from 1, of how many, and whether whole prompts are handed on; of a session
    that goes on from step to step, what it gathers."""
    instruction = work.firing.instruction
    gather = None if work.gathers is None else work.gathers[rank]
    return instruction.firing + 1, instruction.firings, work.by_prompt, gather


def is_data_call(stage: StagePlan, work: Work) -> bool:
    """Whether the firing reads rows of a data set rather than calling a rank on rows."""
    return stage.graph.role(work.firing.instruction.role).kind is Kind.DATA


def samples_per_prompt(graph: Graph, op: Op) -> int:
    """Samples that a generate op makes of a prompt: the step's, or its own for a labelled call; for an environment's
    reset those of the generate that it begins; 1 for other ops."""
    if isinstance(op.params, EnvParams) and op.method == "reset":
        return max((samples_per_prompt(graph, each) for each in graph.ops if _begins(op, each)), default=1)
    if not isinstance(op.params, GenerateParams):
        return 1
    return op.params.samples_per_prompt if op.label is not None else graph.step.samples_per_prompt


def _begins(reset: Op, op: Op) -> bool:
    return isinstance(op.params, GenerateParams) and any(i.source == reset.id for i in op.inputs)


def upstream(graph: Graph, op: Op) -> Iterator[Op]:
    """The op, then the ops it reads from, directly or not, each once, nearest first."""
    seen = {op.id}
    queue = [op]
    while queue:
        current = queue.pop(0)
        yield current
        for source in (i.source for i in current.inputs if i.source is not None):
            if source not in seen:
                seen.add(source)
                queue.append(graph.op(source))


def longest_sample_tokens(graph: Graph) -> int | None:
    """Longest prompt + response in tokens that the flow allows, or the longest context where prompts have no limit, as
    those of environments; None if there is neither."""
    prompts = [op.params.max_prompt_tokens for op in graph.ops if isinstance(op.params, DataParams)]
    responses = [op.params.max_response_tokens for op in graph.ops if isinstance(op.params, GenerateParams)]
    limits = [limit for limit in prompts if limit is not None]
    if not responses or len(limits) < len(prompts):
        contexts = [op.params.max_context_tokens for op in graph.ops if isinstance(op.params, GenerateParams)]
        known = [context for context in contexts if context is not None]
        return max(known) if known and len(known) == len(contexts) else None
    return max(limits, default=0) + max(responses)


def _limits_of_data(graph: Graph, op: Op) -> DataParams | None:
    return next((o.params for o in upstream(graph, op) if isinstance(o.params, DataParams)), None)


def _max_response_tokens(graph: Graph, op: Op) -> int | None:
    return next(
        (o.params.max_response_tokens for o in upstream(graph, op) if isinstance(o.params, GenerateParams)), None
    )
