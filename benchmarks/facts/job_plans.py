"""A Job planned: does it fit, and if not, which line of the ledger binds. Knows the planner; works out no memory.

What `flowrl plan` says of memory is what placement says, so a program and a simulated step are not made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.facts.job_flows import flow_of
from benchmarks.facts.jobs import GIB, Job, UnreadableError
from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.placement.search import search
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import Memory
from flowrl.spec import loads

FOLDER = str(Path(__file__).parent)
NOT_OF_A_ROLE = ("processes", "reserve for fragmentation")


@dataclass(frozen=True, slots=True)
class Verdict:
    fits: bool
    phase: str = ""
    """Of the tightest entry."""
    line: str = ""
    """Its largest line of a role: `actor_train logits`."""
    lines: tuple[tuple[str, float], ...] = ()
    """The tightest entry's lines, the largest first, GiB."""
    need_gib: float = 0.0
    limit_gib: float = 0.0
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        word = "fits" if self.fits else "does not fit"
        return f"{word}: {self.phase} {self.need_gib:.1f} of {self.limit_gib:.1f} GiB, most of it {self.line}"


def verdict_of(job: Job) -> Verdict:
    """Raises UnreadableError with the planner's words where the flow is refused for another reason than memory."""
    text, left_out = flow_of(job)
    return verdict_of_document(text, left_out)


def verdict_of_document(text: str, left_out: tuple[str, ...] = ()) -> Verdict:
    """Of a flow's YAML. Raises UnreadableError as `verdict_of` does."""
    try:
        memory = _memory(text)
    except FlowError as error:
        told = next(iter(error.diagnostics))
        raise UnreadableError(f"the planner refuses the flow: {told.code} {told.headline}") from None
    tightest = _tightest(memory)
    if tightest is None:
        raise UnreadableError("the planner gives no memory")
    lines = sorted(((_name(each), each.value / GIB) for each in tightest.lines), key=lambda each: -each[1])
    own = next((name for name, _ in lines if name not in NOT_OF_A_ROLE), "")
    return Verdict(
        fits=all(entry.peak_bytes <= entry.limit_bytes for entry in memory),
        phase=tightest.phase,
        line=own,
        lines=tuple(lines),
        need_gib=tightest.peak_bytes / GIB,
        limit_gib=tightest.limit_bytes / GIB,
        left_out=left_out,
    )


def _memory(text: str) -> tuple[Memory, ...]:
    """What the placement that is chosen needs. `search` is `place` without the words: why, and what would help."""
    spec = loads(text, folder=FOLDER)
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster = lower_stage_cluster(spec, 0)
    best, _ = search(graph, cluster, lower_placement(spec, 0), shapes_of(graph, spec.folder))
    return best.laid.memory


def _tightest(entries: Sequence[Memory]) -> Memory | None:
    return max(entries, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes), default=None)


def _name(line: object) -> str:
    role, what = getattr(line, "role", None), str(getattr(line, "what", ""))
    return what if role is None else f"{role} {what}"
