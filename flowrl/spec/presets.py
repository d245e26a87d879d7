"""`use: NAME`: a flow or stage starts from a preset, a YAML file in flowrl/presets/; its own keys override that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.flow import OriginKind
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, merge
from flowrl.spec.yaml_tree import read_yaml

FOLDER = Path(__file__).resolve().parents[1] / "presets"
PREFIX = "preset:"
_OWN = ("flowrl", "name", "use")
"""Keys that a preset has for itself and never hands on."""


@dataclass(slots=True)
class Presets:
    """The presets that a document uses: their text and where it asks for them."""

    text: dict[str, str] = field(default_factory=dict[str, str])
    asked: dict[str, Span] = field(default_factory=dict[str, Span])


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def preset_text(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def apply_presets(root: MappingNode, presets: Presets) -> MappingNode:
    """Merge the preset under the flow, or each stage's under the stage. Raises FlowError (FR0114)."""
    stages = root.entries.get("stages")
    if stages is None or not isinstance(stages.node, SequenceNode) or not stages.node.items:
        return _apply(root, presets)
    items = tuple(_apply(item, presets) if isinstance(item, MappingNode) else item for item in stages.node.items)
    return root.with_entry(replace(stages, node=replace(stages.node, items=items)))


def _apply(node: MappingNode, presets: Presets) -> MappingNode:
    use = node.get("use")
    if not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        return node
    known = preset_names()
    if use.value not in known:
        near = near_names(use.value, known)
        help_ = f"a preset with a near name exists: `{near[0]}`" if near else f"the presets are {', '.join(known)}"
        raise FlowError(diagnose("FR0114", use.span, helps=[Help(text=help_)], name=use.value))
    file = f"{PREFIX}{use.value}"
    presets.text[file] = preset_text(use.value)
    presets.asked.setdefault(file, use.span)
    below = read_yaml(presets.text[file], file, OriginKind.PRESET)
    assert isinstance(below, MappingNode)
    return merge_flows(below.without(*_OWN), node.without("use"))


def merge_flows(base: MappingNode, over: MappingNode) -> MappingNode:
    """Mappings deep, lists replaced, `edges` added."""
    merged = merge(base, over)
    assert isinstance(merged, MappingNode)
    edges = _added(base.entries.get("edges"), over.entries.get("edges"))
    return merged if edges is None else merged.with_entry(edges)


def _added(base: Entry | None, over: Entry | None) -> Entry | None:
    if base is None or over is None:
        return over or base
    if not (isinstance(base.node, SequenceNode) and isinstance(over.node, SequenceNode)):
        return over
    items: tuple[Node, ...] = (*base.node.items, *over.node.items)
    return replace(over, node=replace(over.node, items=items, flow=False))
