"""The Python front door: calls → the same raw tree as YAML, each value with the place of its call.

    flow = FlowBuilder("grpo")
    policy = flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=1024)
    actor = flow.trainer("actor_train", policy, backend="fsdp", loss="ppo")
    batch = infer.generate(flow.data("train", "gsm8k.jsonl"))
    scored = flow.reward("reward", my_reward).score(batch)
    actor.update(flow.estimator("advantage", "grpo").estimate(scored))
    actor >> infer
    flow.step(prompts=128, samples_per_prompt=8)
    spec = flow.spec()

Nothing is raised before `spec()`, which checks what is checked of YAML and reports all faults at their calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec.blocks import GenerateDocument, GenerateOverrides, UpdateDocument
from flowrl.spec.call_site import CallSite, call_site, source_text
from flowrl.spec.edges import ALL_ATTRIBUTES
from flowrl.spec.flow import FlowSpec
from flowrl.spec.handles import (
    Batch,
    Column,
    DataSet,
    EnvHandle,
    EstimatorHandle,
    FilterHandle,
    FunctionHandle,
    GeneratorHandle,
    Joined,
    ModelHandle,
    RewardHandle,
    RoleHandle,
    ScorerHandle,
    TrainerHandle,
)
from flowrl.spec.package_keys import names_in
from flowrl.spec.pipeline import build
from flowrl.spec.python_sections import PythonSections, gathered
from flowrl.spec.python_tree import PYTHON, entry, faults_of, mapping
from flowrl.spec.roles import DEFAULT_KINDS, LABEL_PREFIX, GeneratorRole, TrainerRole
from flowrl.spec.tree import SequenceNode, origins
from flowrl.spec.types import fields

FILE = "<python>"

_SAMPLING = frozenset((*fields(GenerateDocument), *fields(GenerateOverrides)))
_LOSS = frozenset(fields(UpdateDocument))
_ELSEWHERE = frozenset((*TrainerRole.model_fields, *GeneratorRole.model_fields, *ALL_ATTRIBUTES, "inputs"))
"""Keys beside those of a block that stand in the call of a role or an op."""

Function = Callable[..., Any]
Model = ModelHandle | str | None


class Sections(PythonSections):
    """What a flow and a stage have in common.

    Beside a preset, what a role needs may be left out: `flow.generator("actor_infer")` is the preset's.
    """

    def model(self, name: str, source: str | Mapping[str, Any] | RoleHandle | None = None, **keys: Any) -> ModelHandle:
        """Initial weights: a hub id, a folder, an inline shape, or a trainer of an earlier stage."""
        site = call_site()
        if isinstance(source, RoleHandle):
            source = f"stages.{source.owner.name}.{source.name}"
        self._add(("models", name), site, _with(keys, source=source), {"source": 1})
        return ModelHandle(self, name)

    def data(self, name: str, source: str | Function | None = None, **keys: Any) -> DataSet:
        """A data set: a jsonl file or a function that returns rows; or `seeds=`, or `mix={other: share}`."""
        site = call_site()
        self._add(("data", name), site, _with(keys, source=source), {"source": 1})
        return DataSet(self, f"data.{name}")

    def trainer(self, name: str, model: Model = None, **keys: Any) -> TrainerHandle:
        """Keys of `update` (loss, clip_ratio …) may be given directly."""
        self._role(name, "trainer", call_site(), _with(gathered(keys, "update", _names(keys, "update")), model=model))
        return TrainerHandle(self, name)

    def generator(self, name: str, model: Model = None, **keys: Any) -> GeneratorHandle:
        """Keys of `generate` (max_response_tokens, temperature …) may be given directly."""
        self._role(
            name, "generator", call_site(), _with(gathered(keys, "generate", _names(keys, "generate")), model=model)
        )
        return GeneratorHandle(self, name)

    def scorer(self, name: str, model: Model = None, **keys: Any) -> ScorerHandle:
        """A frozen model; `top_k=` for its most likely tokens."""
        self._role(name, "scorer", call_site(), _with(keys, model=model))
        return ScorerHandle(self, name)

    def reward(self, name: str, function: str | Function | None = None, **keys: Any) -> RewardHandle:
        """A function, or one other flavour as a key: `model=`, `judge=`, `sandbox=`, `router=`, `combine=`."""
        self._role(name, "reward", call_site(), _with(keys, function=function))
        return RewardHandle(self, name)

    def estimator(self, name: str, estimator: str | None = None, **keys: Any) -> EstimatorHandle:
        """Rewards to advantages: grpo, gae, …"""
        self._role(name, "estimator", call_site(), _with(keys, estimator=estimator))
        return EstimatorHandle(self, name)

    def filter(self, name: str, rule: str | None = None, **keys: Any) -> FilterHandle:
        """Drops or masks rows; `by=` is a column, as text or `batch["field"]`."""
        self._role(name, "filter", call_site(), _with(keys, rule=rule))
        return FilterHandle(self, name)

    def env(self, name: str, env: str | type | None = None, **keys: Any) -> EnvHandle:
        """An environment: a class at the top level of a file, `FILE.py:CLASS` or `LIBRARY:ID`."""
        self._role(name, "env", call_site(), _with(keys, env=env))
        return EnvHandle(self, name)

    def function(self, name: str, function: str | Function | None = None, **keys: Any) -> FunctionHandle:
        """A function over columns anywhere in the graph, with the columns that it writes as `outputs=`."""
        self._role(name, "function", call_site(), _with(keys, function=function))
        return FunctionHandle(self, name)

    def weights(self, source: RoleHandle, target: RoleHandle, **attributes: Any) -> None:
        """`source => target`, with attributes such as max_lag, every_updates, transport."""
        site = call_site()
        self._own(site, source, target)
        self._edge(site, f"{source.name} => {target.name}", attributes)

    def edge(self, text: str, **attributes: Any) -> None:
        """An edge as it is written in YAML, `a.op, b.op -> c.op`; `remove=True` deletes one of a preset."""
        site = call_site()
        self._edge(site, text, attributes, site.values.get("text", site.value(0)))

    def op(self, name: str) -> Batch:
        """What `role.op` or `role.op@label` gives, for an op whose edges a preset already has."""
        return Batch(self, name, name.partition("@")[2] or None)

    def call(
        self, role: str, op: str, batches: Sequence[Batch | Joined], label: str | None, attributes: Mapping[str, Any]
    ) -> Batch:
        """The edge from `batches` to `role.op`; what the handles' methods do."""
        site = call_site()
        flat = self._flat(site, batches)
        if not batches:
            self._fault(site, f"`{role}.{op}` reads nothing here; give it a batch")
        label = _label(label, flat)
        target = _called(f"{role}.{op}", label)
        rest = dict(attributes)
        if "inputs" in rest:
            chosen = self._mapping(site, {"inputs": rest.pop("inputs")}, {})
            self._put(("roles", role), site.span, chosen)
        if flat:
            self._edge(site, f"{', '.join(batch.source for batch in flat)} -> {target}", rest)
        return Batch(self, target, label)

    def generate(
        self, role: str, batches: Sequence[Batch | Joined], label: str | None, options: Mapping[str, Any]
    ) -> Batch:
        """`call` of a generator, whose sampling keys go to the role."""
        site = call_site()
        if label is None:
            given = [item.batches if isinstance(item, Joined) else (item,) for item in batches]
            label = _label(None, [batch for some in given for batch in some])
        rest = self._sampling(site, role, label, options)
        return self.call(role, "generate", batches, label, rest)

    def interact(
        self, env: RoleHandle, generators: Sequence[RoleHandle], label: str | None, options: Mapping[str, Any]
    ) -> tuple[Batch, ...]:
        """`generator.generate, … <-> env.step`; what leaves is each generator's own."""
        site = call_site()
        self._own(site, env, *generators)
        if not generators:
            self._fault(site, f"nobody plays in `{env.name}` here; give it a generator")
            return ()
        rest: Mapping[str, Any] = options
        for generator in generators:
            rest = self._sampling(site, generator.name, label, options)
        ops = [_called(f"{generator.name}.generate", label) for generator in generators]
        self._edge(site, f"{', '.join(ops)} <-> {_called(f'{env.name}.step', label)}", rest)
        return tuple(Batch(self, op, label) for op in ops)

    def step(self, **keys: Any) -> None:
        """prompts, samples_per_prompt, updates, epochs, refill."""
        self._section("step", call_site(), None, keys)

    def schedule(self, **keys: Any) -> None:
        """max_lag, partial_rollout, when_stale, takes, minibatches."""
        self._section("schedule", call_site(), None, keys)

    def placement(self, how: str | None = None, **keys: Any) -> None:
        """auto, colocated, disaggregated, or keys: pools, pin, apart."""
        self._section("placement", call_site(), how, keys)

    def pool(self, name: str, gpus: int | None = None, roles: Sequence[RoleHandle | str] = (), **keys: Any) -> str:
        """A pool of the placement; gives its name, for `pin`. `layouts={role: {"tp": 2}}`."""
        given = _with(keys, gpus=gpus, roles=list(roles) or None)
        self._add(("placement", "pools", name), call_site(), given, {"gpus": 1, "roles": 2})
        return name

    def cluster(self, shorthand: str | None = None, **keys: Any) -> None:
        """`local`, a shorthand such as 16xH100-80G, or keys: gpu, nodes, gpus_per_node, groups …"""
        self._section("cluster", call_site(), shorthand, keys)

    def group(self, name: str, gpu: str, **keys: Any) -> str:
        """A group of nodes of the cluster; gives its name, for the `group=` of a pool."""
        self._add(("cluster", "groups", name), call_site(), {"gpu": gpu, **keys}, {"gpu": 1})
        return name

    def run(self, **keys: Any) -> None:
        """steps, seed, checkpoint_every_steps … (this says how long a run is; it starts none)."""
        self._section("run", call_site(), None, keys)

    def assume(self, op: str | Batch, **keys: Any) -> None:
        """What the planner may assume of `role.op`."""
        site = call_site()
        name = op.source if isinstance(op, Batch) else op
        self._put(("assume", name), site.value(0), self._mapping(site, keys, {}))

    def vars(self, **values: Any) -> None:
        """Variables of a preset or an included file. Texts from Python are never templates: use Python's own here."""
        self._section("vars", call_site(), None, values)

    def include(self, *files: str | os.PathLike[str]) -> None:
        """YAML files that this flow or stage starts from, relative to its folder."""
        site = call_site()
        self._append("include", site, [self._node(file, site.value(at)) for at, file in enumerate(files)])

    def _role(self, name: str, kind: str, site: CallSite, keys: Mapping[str, Any]) -> None:
        kinds = {} if DEFAULT_KINDS.get(name) == kind else {"kind": kind}
        positions: dict[str, int] = dict.fromkeys(("model", "function", "estimator", "rule", "env"), 1)
        self._add(("roles", name), site, {**kinds, **keys}, positions)

    def _sampling(self, site: CallSite, role: str, label: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Sampling keys go to the role; gives the others."""
        names = _names(options, "generate")
        sampling = {key: value for key, value in options.items() if key in names}
        if sampling:
            block = "generate" if label is None else f"{LABEL_PREFIX}{label}"
            self._put(("roles", role, block), site.span, self._mapping(site, sampling, {}))
        return {key: value for key, value in options.items() if key not in names}


def _names(given: Mapping[str, Any], block: str) -> frozenset[str]:
    """Keys that belong into `block`; packages are asked only about a key that is not of the language."""
    own = _LOSS if block == "update" else _SAMPLING
    return own if given.keys() <= own | _ELSEWHERE else own | names_in(block)


def _with(keys: Mapping[str, Any], **first: Any) -> dict[str, Any]:
    """What was given by position, before the keys; None is not given."""
    return {**{key: value for key, value in first.items() if value is not None}, **keys}


def _label(label: str | None, batches: Sequence[Any]) -> str | None:
    """The label given, else the one that all batches have."""
    labels = {batch.label for batch in batches if isinstance(batch, Batch)}
    return labels.pop() if label is None and len(labels) == 1 else label


def _called(op: str, label: str | None) -> str:
    return op if label is None else f"{op}@{label}"


class StageBuilder(Sections):
    """One of the flows that a file runs one after another."""

    def __init__(self, parent: FlowBuilder, name: str, use: str | None, report: list[Diagnostic]) -> None:
        super().__init__(name, use, parent.folder, report)
        self._parent = parent

    def gate(self, metric: str | Column, **keys: Any) -> None:
        """A condition on a metric, as text or `batch["field"]`: at_least or at_most, when, otherwise."""
        site = call_site()
        name = metric.metric if isinstance(metric, Column) else metric
        self._put(("gate",), site.span, self._mapping(site, {"metric": name, **keys}, {"metric": 0}))

    def _own(self, site: CallSite, *handles: Batch | RoleHandle) -> None:
        inherited = [handle for handle in handles if isinstance(handle, DataSet) and handle.owner is self._parent]
        super()._own(site, *(handle for handle in handles if handle not in inherited))


class FlowBuilder(Sections):
    """A flow. `folder` is where relative paths start: by default the folder of the calling file."""

    def __init__(self, name: str, use: str | None = None, folder: str | None = None) -> None:
        caller = call_site().span.file
        default = os.path.dirname(caller) if os.path.isfile(caller) else ""
        super().__init__(name, use, folder or default or ".", [])
        self._stages: list[StageBuilder] = []

    def stage(self, name: str, use: str | None = None) -> StageBuilder:
        """The next stage; what is said of the flow itself is then shared by all stages."""
        made = StageBuilder(self, name, use, self._report)
        self._stages.append(made)
        return made

    def allow(self, *codes: str) -> None:
        """Warnings that are not shown."""
        site = call_site()
        self._append("allow", site, [self._node(code, site.value(at)) for at, code in enumerate(codes)])

    def spec(self, sets: Sequence[str] = ()) -> FlowSpec:
        """The flow, checked. Raises FlowError (FR00, FR01)."""
        span = self._root.span
        root = mapping(span, [entry("flowrl", span, self._node(1, span)), *self._root.entries.values()])
        if self._stages:
            stages = SequenceNode(items=tuple(stage.node() for stage in self._stages), span=span, kind=PYTHON)
            root = root.with_entry(entry("stages", span, stages))
        report = [*self._report, *faults_of(root)]
        if report:
            raise FlowError(report)
        files = sorted({origin.value.file for _, origin in origins(root) if origin.value is not None})
        return build(root, {file: source_text(file) for file in files}, FILE, self.folder, sets)
