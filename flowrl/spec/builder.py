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
from dataclasses import dataclass
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
from flowrl.diag.span import Span
from flowrl.spec.blocks import GenerateDocument, GenerateOverrides, UpdateDocument
from flowrl.spec.call_site import CallSite, call_site, source_text
from flowrl.spec.flow import FlowSpec
from flowrl.spec.functions import UnnameableError, function_name
from flowrl.spec.handles import (
    Batch,
    EstimatorHandle,
    GeneratorHandle,
    ModelHandle,
    RewardHandle,
    RoleHandle,
    ScorerHandle,
    TrainerHandle,
)
from flowrl.spec.pipeline import build
from flowrl.spec.python_tree import PYTHON, entry, mapping, node_of
from flowrl.spec.roles import DEFAULT_KINDS, LABEL_PREFIX
from flowrl.spec.tree import MappingNode, Node, SequenceNode, merge, origins

FILE = "<python>"

_SAMPLING = frozenset(GenerateDocument.model_fields) | frozenset(GenerateOverrides.model_fields)
_LOSS = frozenset(UpdateDocument.model_fields)

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Keys of a block that were given directly, with the block itself if it was given too."""

    block: Mapping[str, Any]
    flat: Mapping[str, Any]


def _gathered(keys: Mapping[str, Any], block: str, names: frozenset[str]) -> dict[str, Any]:
    flat = {key: value for key, value in keys.items() if key in names}
    rest = {key: value for key, value in keys.items() if key not in names and key != block}
    return {**rest, block: _Gathered(keys.get(block, {}), flat)}


class Sections:
    """What a flow and a stage have in common."""

    def __init__(self, name: str, use: str | None, folder: str, report: list[Diagnostic]) -> None:
        self.name = name
        self.folder = folder
        self._report = report
        site = call_site()
        self._root = mapping(site.span, [entry("name", site.key("name"), self._node(name, site.value(0)))])
        if use is not None:
            self._put(("use",), site.key("use"), self._node(use, site.value("use")))

    def model(self, name: str, source: str | Mapping[str, Any] | RoleHandle, **keys: Any) -> ModelHandle:
        """Initial weights: a hub id, a folder, an inline shape, or a trainer of an earlier stage."""
        site = call_site()
        if isinstance(source, RoleHandle):
            source = f"stages.{source.owner.name}.{source.name}"
        self._add("models", name, site, {"source": source, **keys}, {"source": 1})
        return ModelHandle(self, name)

    def data(self, name: str, source: str | Function | None = None, **keys: Any) -> Batch:
        """A data set: a jsonl file or a function that returns rows."""
        site = call_site()
        given = keys if source is None else {"source": source, **keys}
        self._add("data", name, site, given, {"source": 1})
        return Batch(self, f"data.{name}")

    def trainer(self, name: str, model: ModelHandle, **keys: Any) -> TrainerHandle:
        """Keys of `update` (loss, clip_ratio …) may be given directly."""
        self._role(name, "trainer", call_site(), {"model": model, **_gathered(keys, "update", _LOSS)}, {"model": 1})
        return TrainerHandle(self, name)

    def generator(self, name: str, model: ModelHandle, **keys: Any) -> GeneratorHandle:
        """Keys of `generate` (max_response_tokens, temperature …) may be given directly."""
        given = _gathered(keys, "generate", _SAMPLING)
        self._role(name, "generator", call_site(), {"model": model, **given}, {"model": 1})
        return GeneratorHandle(self, name)

    def scorer(self, name: str, model: ModelHandle, **keys: Any) -> ScorerHandle:
        self._role(name, "scorer", call_site(), {"model": model, **keys}, {"model": 1})
        return ScorerHandle(self, name)

    def reward(self, name: str, function: str | Function | None = None, **keys: Any) -> RewardHandle:
        """A function, or one other flavour as a key: `model=`."""
        given = keys if function is None else {"function": function, **keys}
        self._role(name, "reward", call_site(), given, {"function": 1})
        return RewardHandle(self, name)

    def estimator(self, name: str, estimator: str, **keys: Any) -> EstimatorHandle:
        self._role(name, "estimator", call_site(), {"estimator": estimator, **keys}, {"estimator": 1})
        return EstimatorHandle(self, name)

    def weights(self, source: RoleHandle, target: RoleHandle, **attributes: Any) -> None:
        """`source => target`, with attributes such as max_lag, every_updates, transport."""
        site = call_site()
        self._own(site, source, target)
        self._edge(site, f"{source.name} => {target.name}", attributes)

    def call(
        self, role: str, op: str, batches: Sequence[Batch], label: str | None, attributes: Mapping[str, Any]
    ) -> Batch:
        """The edge from `batches` to `role.op`; what the handles' methods do."""
        site = call_site()
        self._own(site, *batches)
        if not batches:
            self._fault(site, f"`{role}.{op}` reads nothing here; give it a batch")
        labels = {batch.label for batch in batches}
        if label is None and len(labels) == 1:
            label = labels.pop()
        target = f"{role}.{op}" if label is None else f"{role}.{op}@{label}"
        if batches:
            self._edge(site, f"{', '.join(batch.source for batch in batches)} -> {target}", attributes)
        return Batch(self, target, label)

    def generate(self, role: str, batches: Sequence[Batch], label: str | None, options: Mapping[str, Any]) -> Batch:
        """`call` of a generator, whose sampling keys go to the role."""
        site = call_site()
        sampling = {key: value for key, value in options.items() if key in _SAMPLING}
        if sampling:
            block = "generate" if label is None else f"{LABEL_PREFIX}{label}"
            self._put(("roles", role, block), site.span, self._mapping(site, sampling, {}))
        rest = {key: value for key, value in options.items() if key not in _SAMPLING}
        return self.call(role, "generate", batches, label, rest)

    def step(self, **keys: Any) -> None:
        self._section("step", call_site(), None, keys)

    def schedule(self, **keys: Any) -> None:
        self._section("schedule", call_site(), None, keys)

    def placement(self, how: str | None = None, **keys: Any) -> None:
        """auto, colocated, disaggregated, or keys: pools, pin, apart."""
        self._section("placement", call_site(), how, keys)

    def cluster(self, shorthand: str | None = None, **keys: Any) -> None:
        """`local`, a shorthand such as 16xH100-80G, or keys: gpu, nodes, gpus_per_node, groups …"""
        self._section("cluster", call_site(), shorthand, keys)

    def run(self, **keys: Any) -> None:
        """steps, seed, checkpoint_every_steps … (this says how long a run is; it starts none)."""
        self._section("run", call_site(), None, keys)

    def assume(self, op: str, **keys: Any) -> None:
        """What the planner may assume of `role.op`."""
        site = call_site()
        self._put(("assume", op), site.value(0), self._mapping(site, keys, {}))

    def _section(self, key: str, site: CallSite, whole: str | None, keys: Mapping[str, Any]) -> None:
        node = self._mapping(site, keys, {}) if whole is None else self._node(whole, site.value(0))
        self._put((key,), site.span, node)

    def _role(
        self, name: str, kind: str, site: CallSite, keys: Mapping[str, Any], positions: Mapping[str, int]
    ) -> None:
        kinds = {} if DEFAULT_KINDS.get(name) == kind else {"kind": kind}
        self._add("roles", name, site, {**kinds, **keys}, positions)

    def _add(
        self, section: str, name: str, site: CallSite, keys: Mapping[str, Any], positions: Mapping[str, int]
    ) -> None:
        """A new named entry."""
        entries = self._root.get(section)
        first = entries.entries.get(name) if isinstance(entries, MappingNode) else None
        if first is not None:
            also = (Label(first.key_span, "the first"),)
            what = {"models": "model", "roles": "role", "data": "data set"}[section]
            self._report.append(diagnose("FR0125", site.value(0), also=also, what=what, name=name))
        self._put((section, name), site.value(0), self._mapping(site, keys, positions))

    def _mapping(self, site: CallSite, keys: Mapping[str, Any], positions: Mapping[str, int]) -> MappingNode:
        """Keys with their places; those gathered into a block keep the places of the arguments."""

        def place(key: str) -> Span:
            return site.values.get(key) or site.value(positions.get(key, -1))

        def node(key: str, value: Any) -> Node:
            if not isinstance(value, _Gathered):
                return self._node(value, place(key))
            inner = [entry(name, site.key(name), node(name, item)) for name, item in value.flat.items()]
            return merge(self._node(value.block, place(key)), mapping(site.span, inner))

        return mapping(site.span, [entry(key, site.key(key), node(key, value)) for key, value in keys.items()])

    def _node(self, value: Any, span: Span) -> Node:
        def spelled(other: Any) -> str:
            if isinstance(other, ModelHandle | RoleHandle):
                return other.name
            try:
                return function_name(other, self.folder)
            except UnnameableError as error:
                self._report.append(diagnose("FR0126", span, problem=str(error)))
                return ""

        return node_of(value, span, spelled)

    def _put(self, path: tuple[str, ...], key_span: Span, node: Node) -> None:
        """Merge `node` into the tree at `path`."""
        for key in reversed(path):
            node = mapping(node.span, [entry(key, key_span, node)])
        merged = merge(self._root, node)
        assert isinstance(merged, MappingNode)
        self._root = mapping(self._root.span, list(merged.entries.values()))

    def _edge(self, site: CallSite, text: str, attributes: Mapping[str, Any]) -> None:
        edge = self._node(text, site.span)
        if attributes:
            edge = mapping(site.span, [entry("edge", site.span, edge)])
            edge = merge(edge, self._mapping(site, attributes, {}))
        edges = self._root.get("edges")
        before = edges.items if isinstance(edges, SequenceNode) else ()
        self._put(("edges",), site.span, SequenceNode(items=(*before, edge), span=site.span, kind=PYTHON))

    def _own(self, site: CallSite, *handles: Batch | RoleHandle) -> None:
        for handle in handles:
            if handle.owner is not self:
                name = handle.source if isinstance(handle, Batch) else handle.name
                self._fault(site, f"`{name}` belongs to another flow or stage")

    def _fault(self, site: CallSite, problem: str) -> None:
        self._report.append(diagnose("FR0127", site.span, problem=problem))


class StageBuilder(Sections):
    """One of the flows that a file runs one after another."""

    def gate(self, metric: str, **keys: Any) -> None:
        """A condition on a metric: at_least or at_most, when, otherwise."""
        site = call_site()
        node = self._mapping(site, {"metric": metric, **keys}, {"metric": 0})
        self._put(("gate",), site.span, node)

    def node(self) -> MappingNode:
        return self._root


class FlowBuilder(Sections):
    """A flow. `folder` is where relative paths start: by default the folder of the calling file."""

    def __init__(self, name: str, use: str | None = None, folder: str | None = None) -> None:
        caller = call_site().span.file
        default = os.path.dirname(caller) if os.path.isfile(caller) else ""
        super().__init__(name, use, folder or default or ".", [])
        self._stages: list[StageBuilder] = []
        self._allowed: list[str] = []

    def stage(self, name: str, use: str | None = None) -> StageBuilder:
        """The next stage; what is said of the flow itself is then shared by all stages."""
        made = StageBuilder(name, use, self.folder, self._report)
        self._stages.append(made)
        return made

    def allow(self, *codes: str) -> None:
        """Warnings that are not shown."""
        self._allowed += codes
        site = call_site()
        self._put(("allow",), site.span, self._node(self._allowed, site.span))

    def spec(self, sets: Sequence[str] = ()) -> FlowSpec:
        """The flow, checked. Raises FlowError (FR01)."""
        if self._report:
            raise FlowError(self._report)
        span = self._root.span
        root = mapping(span, [entry("flowrl", span, self._node(1, span)), *self._root.entries.values()])
        if self._stages:
            stages = SequenceNode(items=tuple(stage.node() for stage in self._stages), span=span, kind=PYTHON)
            root = root.with_entry(entry("stages", span, stages))
        files = sorted({origin.value.file for _, origin in origins(root) if origin.value is not None})
        return build(root, {file: source_text(file) for file in files}, FILE, self.folder, sets)
