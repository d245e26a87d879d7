"""The Python front door: a flow is built (Flow) or loaded (load), and has the verbs check, plan and to_yaml; a plan is
shown, saved and run. All of them are the functions of flowrl.api said from the object."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl import api
from flowrl.api.compile import Checked, check_as_planned, compile_spec
from flowrl.api.views import flow_picture, framed
from flowrl.compiler.lower.effects import idle
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Plan
from flowrl.spec import FlowBuilder, FlowSpec, load, to_yaml

if TYPE_CHECKING:
    from flowrl.runtime.run import RunResult


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """A plan with the flow it was made from."""

    plan: Plan
    spec: FlowSpec = field(repr=False)

    def show(self, width: int | None = None) -> None:
        """Print the plan's picture."""
        print(api.render(self.plan, width=width or shutil.get_terminal_size().columns))  # noqa: T201

    def _repr_html_(self) -> str:
        """The page of the plan, for notebooks."""
        return framed(self.plan, self.spec)

    def save(self, path: str | Path) -> Path:
        """Write plan.json."""
        Path(path).write_bytes(api.dumps(self.plan))
        return Path(path)

    def run(self, launcher: str | None = None, runs: str | Path = "runs") -> RunResult:
        """Run it. Raises FlowError if it does not fit, names what is not built yet, or fails."""
        return api.run_plan(self.plan, launcher=launcher, runs=runs, spec=self.spec)


class _Verbs(ABC):
    """What can be done with a flow, however it was written."""

    @abstractmethod
    def spec(self, sets: Sequence[str] = ()) -> FlowSpec: ...

    def check(self, cluster: str | None = None) -> Checked:
        """Every fault of the flow, as values, and whether it fits `cluster`, as for `plan`."""
        try:
            return check_as_planned(self.spec(), cluster)
        except FlowError as error:
            return Checked((), error.diagnostics)

    def plan(self, cluster: str | None = None) -> FlowPlan:
        """The flow's plan on `cluster`: a shorthand such as 16xH100-80G, a file, or None for what the flow says."""
        spec = self.spec()
        return FlowPlan(compile_spec(spec, cluster), spec)

    def _repr_html_(self) -> str:
        """The dataflow, for notebooks; of a flow with faults these."""
        try:
            return flow_picture(self.spec())
        except FlowError as error:
            return f"<pre>{escape(str(error))}</pre>"

    def to_yaml(self) -> str:
        """The flow as YAML; `load` reads it back as the same flow."""
        spec = self.spec()
        return to_yaml(spec, idle(spec))


class Flow(FlowBuilder, _Verbs):
    """A flow built in Python; see FlowBuilder for its roles and edges."""


@dataclass(frozen=True, slots=True)
class LoadedFlow(_Verbs):
    """A flow read from a file."""

    loaded: FlowSpec

    def spec(self, sets: Sequence[str] = ()) -> FlowSpec:
        return self.loaded


def load_flow(path: str | Path, sets: Sequence[str] = ()) -> LoadedFlow:
    """The flow of a YAML file. Raises FlowError with every fault that can be told without its graph."""
    return LoadedFlow(load(path, sets))
