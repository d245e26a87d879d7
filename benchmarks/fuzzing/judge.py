"""One mutant through what `flowrl check` does, and `plan` where it is accepted: how it went, how long, how much memory.

Runs in a worker process that has limits. A failure is anything but diagnostics with codes and places, too much time or
too much memory.
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.fuzzing.draft import Mutant
from flowrl import api
from flowrl.diag.catalogue import CODES
from flowrl.diag.diagnostic import Diagnostic, FlowError, Severity
from flowrl.diag.render import render_json, render_text
from flowrl.diag.span import Span
from flowrl.plan.plan import Plan
from flowrl.spec.files import normal_text
from flowrl.spec.flags import flags_text

SECONDS = 2.0
"""Processor time of one verb; the clock of a busy machine says nothing."""
MEGABYTES = 500
ADDRESS_SPACE = 3 << 30
FLOW = "flow.yaml"
PSEUDO_FILES = ("--set", "--cluster", "<python>")
FRAMES = 12


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    """traceback, hang, memory, no code, no place, died."""
    where: str
    detail: str

    @property
    def signature(self) -> str:
        return f"{self.kind}: {self.where}"


@dataclass(slots=True)
class Verdict:
    operations: tuple[str, ...] = ()
    accepted: bool = False
    planned: bool = False
    codes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Processor time of the slowest verb."""
    megabytes: float = 0.0
    """Peak of the process while it worked on the mutant, without the mutant itself, which may be half a gigabyte."""
    failures: list[Failure] = field(default_factory=list[Failure])


class Hang(BaseException):
    """Raised by the timer; no handler of the code under test takes it."""


def limit_process() -> None:
    """Limits of a worker: address space, and the timer that ends a verb."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGPROF, _too_long)


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise Hang


def judge(mutant: Mutant, workspace: Path, plans: bool) -> Verdict:
    """Check the mutant in its folder of the workspace; `plans`: plan it too if it is accepted."""
    folder = workspace / mutant.folder
    path = folder / FLOW
    path.write_bytes(mutant.data)
    for name, data in mutant.files:
        (folder / name).write_bytes(data)
    verdict = Verdict(mutant.operations)
    _forget_peak()
    found: list[Diagnostic] = []
    _verb(verdict, lambda: _check(mutant, path, verdict, found))
    if verdict.accepted and plans and not verdict.failures:
        verdict.planned = True
        _plan(mutant, path, verdict)
    held = (len(mutant.data) + sum(len(data) for _, data in mutant.files)) / 2**20
    # Before the places are looked at: splitting 10 MB into lines is this file's own work.
    verdict.megabytes = _peak() - held
    lines = {str(path): _lines(mutant.data.decode("utf-8-sig", "replace")), "--set": _lines(flags_text(mutant.sets))}
    for diagnostic in found:
        verdict.failures.extend(_faults(diagnostic, mutant, path, lines))
    if verdict.megabytes > MEGABYTES:
        verdict.failures.append(
            Failure("memory", "plan" if verdict.planned else "check", f"{verdict.megabytes:.0f} MB")
        )
    return verdict


def _verb(verdict: Verdict, work: Callable[[], None]) -> None:
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        work()
    except Hang as hang:
        verdict.failures.append(Failure("hang", _place(hang), _frames(hang)))
    except BaseException as fault:
        signal.setitimer(signal.ITIMER_PROF, 0)
        verdict.failures.append(Failure("traceback", f"{type(fault).__name__} in {_place(fault)}", _frames(fault)))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    verdict.seconds = max(verdict.seconds, time.process_time() - start)


def _check(mutant: Mutant, path: Path, verdict: Verdict, found: list[Diagnostic]) -> None:
    checked = api.check(path, mutant.sets, mutant.cluster)
    errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR]
    verdict.codes = tuple(sorted({diagnostic.code for diagnostic in errors}))
    verdict.accepted = not errors
    if not errors and not checked.graphs:
        verdict.failures.append(Failure("no code", "api.check", "no graph and no error"))
    _shown(mutant, path, checked.diagnostics)
    found += checked.diagnostics


def _plan(mutant: Mutant, path: Path, verdict: Verdict) -> None:
    """What `plan` and `expand` do, and `plan` of what expand wrote; each is a command with a budget of its own."""
    plans: list[Plan] = []
    again = path.with_name("expanded.yaml")

    def planned() -> None:
        plans.append(api.plan(path, mutant.sets, mutant.cluster))
        assert api.loads(api.dumps(plans[0])) == plans[0], "the plan read back is another one"
        api.render(plans[0])

    def replanned() -> None:
        try:
            second = api.plan(again, (), mutant.cluster)
        except FlowError as error:
            raise AssertionError(f"what expand writes is refused: {error}") from None
        assert second.digests.flow == plans[0].digests.flow, "what expand writes is another flow"

    def expanded() -> None:
        try:
            again.write_text(api.expand(path, mutant.sets), encoding="utf-8")
        except FlowError as error:
            if [found.code for found in error.diagnostics] != ["FR0004"]:
                raise
            verbs.remove(replanned)

    verbs = [planned, expanded, replanned]
    for work in verbs:
        if not verdict.failures:
            _verb(verdict, work)


def _shown(mutant: Mutant, path: Path, diagnostics: tuple[Diagnostic, ...]) -> None:
    """What the command prints."""
    flags = {"--set": flags_text(mutant.sets), "--cluster": mutant.cluster or ""}

    def source(file: str) -> str | None:
        if file in flags:
            return flags[file]
        try:
            return Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    render_text(diagnostics, source, width=100).encode("utf-8", "replace")
    render_json(diagnostics)


def _lines(text: str) -> list[str]:
    return normal_text(text).split("\n")


def _faults(diagnostic: Diagnostic, mutant: Mutant, path: Path, lines: Mapping[str, list[str]]) -> Iterator[Failure]:
    if diagnostic.code not in CODES:
        yield Failure("no code", diagnostic.code, diagnostic.headline)
    if not diagnostic.labels:
        whole = " ".join(diagnostic.notes)
        if diagnostic.severity is Severity.ERROR and not _names_a_file(whole, mutant, path):
            yield Failure("no place", diagnostic.code, f"{diagnostic.headline}: {whole}")
        return
    for span in (label.span for label in diagnostic.labels):
        problem = _span_problem(span, lines.get(span.file))
        if problem:
            yield Failure("no place", diagnostic.code, f"{diagnostic.headline}: {span!r} {problem}")


def _names_a_file(text: str, mutant: Mutant, path: Path) -> bool:
    """Whether the words of a fault without a place name the file (or flag) that they are about."""
    names = (str(path), *(str(path.with_name(name)) for name, _ in mutant.files))
    return any(name in text for name in names) or bool(mutant.cluster and mutant.cluster in text)


def _span_problem(span: Span, lines: list[str] | None) -> str:
    """What is wrong with a place; `lines` are those of its file, where the mutant has it."""
    if not span.file or span.line < 1 or span.column < 1:
        return "is no place"
    if (span.end_line, span.end_column) < (span.line, span.column):
        return "ends before it starts"
    if lines is None:
        return ""
    if span.line > len(lines):
        return f"lies behind the {len(lines)} lines of the text"
    if span.column > len(lines[span.line - 1]) + 1:
        return "lies behind the end of its line"
    return ""


def _place(fault: BaseException) -> str:
    """The innermost frame in our code; the timer's own are not ours."""
    frames = traceback.extract_tb(fault.__traceback__)
    ours = [frame for frame in frames if "/flowrl/" in frame.filename]
    if not ours:
        return frames[-1].name if frames else "?"
    return f"{ours[-1].filename.rpartition('/flowrl/')[2]}:{ours[-1].name}"


def _frames(fault: BaseException) -> str:
    lines = traceback.format_exception(fault, limit=-FRAMES)
    return "".join(lines)[-3000:]


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> float:
    """Megabytes of resident memory at most since the last `_forget_peak`; where that is not to be had, ever."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
