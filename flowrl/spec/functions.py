"""A function or class → `FILE.py:NAME`, the only way that a flow names code."""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Any


class UnnameableError(Exception):
    """A function that no other process could find by a name. The text says why."""


def function_name(function: Any, folder: str) -> str:
    """`FILE.py:NAME` of a module-level function or class, the file relative to `folder` where it lies below it.

    Raises UnnameableError for lambdas, closures, methods, partials and functions without a file.
    """
    if not isinstance(function, FunctionType | type):
        raise UnnameableError(
            f"a {type(function).__name__} is not a function; pass a function, and its arguments as `args=`"
        )
    name, qualified = function.__name__, function.__qualname__
    if name == "<lambda>":
        raise UnnameableError("a lambda has no name")
    if "<locals>" in qualified:
        raise UnnameableError(f"`{name}` is defined inside `{qualified.partition('.<locals>')[0]}`")
    if "." in qualified:
        raise UnnameableError(f"`{name}` is a method of `{qualified.rpartition('.')[0]}`")
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise UnnameableError(f"`{name}` is not in a file")
    if getattr(module, name, None) is not function:
        raise UnnameableError(f"`{name}` of `{os.path.basename(file)}` is another object")
    return f"{relative(file, folder)}:{name}"


def relative(file: str, folder: str) -> str:
    """`file` seen from `folder` if it lies below it, else its absolute path."""
    path, start = os.path.realpath(file), os.path.realpath(folder)
    inside = os.path.commonpath([path, start]) == start
    return os.path.relpath(path, start) if inside else path
