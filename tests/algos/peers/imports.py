"""Peers' modules, as they are published: from the dependency group `references`, which nothing but these tests needs.

A peer that is not there skips the module that asks for it, by name; one that is there and does not import is a fault.
Packages whose `__init__` asks for a GPU's libraries are entered by their folders, without it.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

HOW = {"gigpo": "langfengQ/verl-agent", "ragen": "mll-lab-nu/RAGEN"}
"""Repositories of the peers that are in no package registry: a checkout on PYTHONPATH makes them importable."""


def peer(module: str, bare: Iterable[str] = (), absent: Iterable[str] = ()) -> ModuleType:
    """The module. `bare`: packages that are not to run their `__init__`; `absent`: what it imports and does not use."""
    package = module.partition(".")[0]
    if not _folders(package):
        need = f"a checkout of {HOW[package]}" if package in HOW else "`make install-references`"
        pytest.skip(f"{package} is not importable: {need}", allow_module_level=True)
    for name in bare:
        _enter(name)
    with warnings.catch_warnings(), mock.patch.dict(sys.modules, {name: ModuleType(name) for name in absent}):
        warnings.simplefilter("ignore")
        found = importlib.import_module(module)
        kept = {name: each for name, each in sys.modules.items() if name not in absent}
    sys.modules.update(kept)
    return found


def _folders(package: str) -> list[str]:
    places = [Path(each or ".") / package for each in sys.path]
    return [str(place) for place in places if place.is_dir()]


def _enter(name: str) -> None:
    """Put the package and those above it among the imported, without their `__init__`."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        whole = ".".join(parts[:count])
        if whole not in sys.modules:
            package = types.ModuleType(whole)
            package.__path__ = [str(Path(folder, *parts[1:count])) for folder in _folders(parts[0])]
            sys.modules[whole] = package
