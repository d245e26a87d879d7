"""`flowrl init`: write the first files of a flow from a preset. Overwrites nothing."""

from __future__ import annotations

import re
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.spec.presets import preset_head, preset_names, unknown_preset
from flowrl.spec.starter import starter

SUFFIXES = (".yaml", ".yml")


def init(preset: str, target: str | Path = ".") -> tuple[Path, ...]:
    """Write a commented flow that uses `preset`, and the functions that it names beside it; gives their paths.

    `target` is the flow's file (`.yaml`), or a folder for `PRESET.yaml`. Raises FlowError: FR0114 for an unknown
    preset, FR0025 where a file is already there, FR0026 where none can be written.
    """
    if preset not in preset_names():
        raise FlowError(unknown_preset(preset, None))
    path = Path(target)
    folder, name = (path.parent, path.name) if path.suffix in SUFFIXES else (path, f"{preset}.yaml")
    files = {folder / each: text for each, text in starter(preset, name).items()}
    there = [file for file in files if file.exists() or file.is_symlink()]
    if there:
        raise FlowError(diagnose("FR0025", file=file) for file in there)
    for file, text in files.items():
        _write(file, text)
    return tuple(files)


def presets() -> dict[str, str]:
    """Every preset by name, with what it is in one line: the first clause of its remark, without the name again."""
    heads = {name: preset_head(name).what for name in preset_names()}
    return {name: re.split(r"[.;](?: |$)", what.partition(": ")[2] or what)[0] for name, what in heads.items()}


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise FlowError(diagnose("FR0026", file=file, problem=problem)) from None
