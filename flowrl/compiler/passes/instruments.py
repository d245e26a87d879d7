"""Instruments: timing and dump. Objects hooked around passes; they watch and never change the graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flowrl.graph.graph import Graph
from flowrl.graph.text import print_graph


@dataclass(slots=True)
class Timing:
    """Seconds of each pass, by name."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _started: float = 0.0

    def before(self, name: str, graph: Graph) -> None:
        self._started = self.clock()

    def after(self, name: str, graph: Graph) -> None:
        self.seconds[name] = self.clock() - self._started


@dataclass(slots=True)
class Dump:
    """The text of the graph after each pass, as `folder/NN-PASS.graph`."""

    folder: Path
    _written: int = 0

    def before(self, name: str, graph: Graph) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._written == 0:
            self._write("lowered", graph)

    def after(self, name: str, graph: Graph) -> None:
        self._write(name, graph)

    def _write(self, name: str, graph: Graph) -> None:
        path = self.folder / f"{self._written:02d}-{name}.graph"
        path.write_text(print_graph(graph), encoding="utf-8")
        self._written += 1
