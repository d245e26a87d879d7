"""What mutants are made from: every preset, completed to a flow that checks, and every example with its files.

Takes the repository, gives texts and a workspace on disk in which the flows find their functions and data.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PRESETS = ROOT / "flowrl" / "presets"

FLAVOURS = frozenset({"function", "model", "judge", "sandbox", "router", "combine"})
SCALAR_LOSSES = frozenset({"value", "bradley_terry"})
PAIR_LOSSES = frozenset({"dpo", "bradley_terry"})
_FUNCTION = re.compile(r"([\w./-]+\.py):(\w+)")


@dataclass(frozen=True, slots=True)
class Seed:
    """A flow as written. `folder`: where in a workspace its relative paths start."""

    name: str
    folder: str
    text: str


def all_seeds() -> tuple[Seed, ...]:
    """Presets by `use:` and by their own text, and the examples; in a fixed order."""
    found: list[Seed] = []
    for path in sorted(PRESETS.glob("*.yaml")):
        used, written = completed(path.read_text(encoding="utf-8"), path.stem)
        found.append(Seed(f"preset:{path.stem}", "presets", used))
        found.append(Seed(f"preset:{path.stem}:written", "presets", written))
    for path in (*sorted(EXAMPLES.glob("*.yaml")), *sorted((EXAMPLES / "flows").glob("*.yaml"))):
        folder = path.parent.relative_to(ROOT).as_posix()
        found.append(Seed(path.relative_to(ROOT).as_posix(), folder, path.read_text(encoding="utf-8")))
    return tuple(found)


def make_workspace(folder: Path, seeds: tuple[Seed, ...]) -> None:
    """Put the examples' files into `folder`, and a stub for each function that a seed names and nobody wrote."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "presets").mkdir()
    (folder / "presets" / "gsm8k.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    wanted: dict[Path, list[str]] = {}
    for seed in seeds:
        for file, name in _FUNCTION.findall(seed.text):
            wanted.setdefault(folder / seed.folder / file, []).append(name)
    for path, names in wanted.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join(_stub(name) for name in dict.fromkeys(names)))


def _stub(name: str) -> str:
    if name[0].isupper():
        return f"class {name}:\n    pass\n"
    return f"def {name}(response):\n    return [0.0 for _ in response]\n"


def completed(text: str, name: str) -> tuple[str, str]:
    """The preset used, and the preset written out, each with the sections that it leaves to the user."""
    preset: dict[str, Any] = yaml.safe_load(text)
    roles: dict[str, dict[str, Any]] = preset.get("roles", {})
    rewards = {role: {"function": "rewards.py:score"} for role, keys in roles.items() if _is_bare_reward(role, keys)}
    own: dict[str, Any] = {
        "cluster": "8xH100-80G",
        "models": {model: _model(model, roles) for model in _models(roles) - set(preset.get("models", {}))},
        "data": {data: _data(preset, data) for data in _sources(preset) - set(preset.get("data", {}))},
    }
    used = {"flowrl": 1, "name": f"{name}-used", "use": name, **own, **({"roles": rewards} if rewards else {})}
    whole = {**preset, **{key: {**preset.get(key, {}), **own[key]} for key in ("models", "data")}}
    whole["cluster"] = own["cluster"]
    whole["roles"] = {role: {**keys, **rewards.get(role, {})} for role, keys in roles.items()}
    return _dumped(used), _dumped(whole)


def _dumped(tree: Any) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)


def _is_bare_reward(role: str, keys: dict[str, Any]) -> bool:
    return keys.get("kind", role) == "reward" and not FLAVOURS & set(keys)


def _models(roles: dict[str, dict[str, Any]]) -> set[str]:
    return {str(keys["model"]) for keys in roles.values() if "model" in keys}


def _model(model: str, roles: dict[str, dict[str, Any]]) -> dict[str, Any]:
    users = [(role, keys) for role, keys in roles.items() if keys.get("model") == model]
    scalar = any(
        role == "critic" or _loss(keys) in SCALAR_LOSSES or keys.get("kind", role) == "reward" for role, keys in users
    )
    return {"source": "Qwen/Qwen2.5-0.5B-Instruct", **({"head": "scalar"} if scalar else {})}


def _loss(keys: dict[str, Any]) -> str:
    return str(keys.get("update", {}).get("loss", ""))


def _edges(preset: dict[str, Any]) -> Iterator[str]:
    for edge in preset.get("edges", ()):
        yield str(edge["edge"]) if isinstance(edge, dict) else str(edge)


def _sources(preset: dict[str, Any]) -> set[str]:
    return {name for edge in _edges(preset) for name in re.findall(r"\bdata\.(\w+)", edge)}


def _data(preset: dict[str, Any], name: str) -> dict[str, Any]:
    common = {"source": "gsm8k.jsonl", "prompt": "question", "max_prompt_tokens": 512}
    direct = any(f"data.{name} " in edge and ".update" in edge for edge in _edges(preset))
    if direct and any(_loss(keys) in PAIR_LOSSES for keys in preset.get("roles", {}).values()):
        return {**common, "chosen": "answer", "rejected": "answer"}
    return {**common, "response": "answer"} if direct else {**common, "keep": ["answer"]}
