"""`use: NAME`: a flow or stage starts from a preset, a YAML file in flowrl/presets/; its own keys override that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Respelt, diagnose
from flowrl.diag.near import is_only_near, near_names
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
    """The file of the preset, as it ships."""
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class PresetHead:
    """What the remark at the top of a preset says."""

    what: str
    """What it is: `GRPO: advantages from groups …`."""
    paper: str
    give: str
    """What a flow that uses it must give."""


def preset_head(name: str) -> PresetHead:
    remark = [line[1:].strip() for line in preset_text(name).splitlines() if line.startswith("#")]
    what, _, rest = " ".join(remark).partition(" Paper: ")
    paper, _, give = rest.partition(" You give: ")
    return PresetHead(what, paper, give)


def preset_tree(name: str) -> MappingNode:
    """The preset as it is written, each value with its place in `preset:NAME`."""
    tree = read_yaml(preset_text(name), f"{PREFIX}{name}", OriginKind.PRESET)
    assert isinstance(tree, MappingNode)
    return tree


def unknown_preset(name: str, span: Span | None) -> Diagnostic:
    """FR0114, with the near name or all of them."""
    known = preset_names()
    near = near_names(name, known)
    if not near:
        return diagnose("FR0114", span, helps=[Help(text=f"the presets are {', '.join(known)}")], name=name)
    text, certain = f"a preset with a near name exists: `{near[0]}`", is_only_near(name, near)
    help_ = Respelt(text=text, span=span, old=name, new=near[0], certain=certain)
    return diagnose("FR0114", span, helps=[help_], name=name)


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
    if use.value not in preset_names():
        raise FlowError(unknown_preset(use.value, use.span))
    file = f"{PREFIX}{use.value}"
    presets.text[file] = preset_text(use.value)
    presets.asked.setdefault(file, use.span)
    return merge_flows(preset_tree(use.value).without(*_OWN), node.without("use"))


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
