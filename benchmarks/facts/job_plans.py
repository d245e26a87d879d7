"""A Job planned: does it fit, and if not, which line of the ledger binds. Knows the planner; works out no memory.

What `flowrl plan` says of memory is what placement says, so a program and a simulated step are not made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from benchmarks.facts.job_flows import flow_of
from benchmarks.facts.jobs import GIB, Job, Party, UnreadableError
from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.machine.profile import PROFILE, Profile
from flowrl.placement.cost.placed import HOST
from flowrl.placement.search import search
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import Memory
from flowrl.spec import loads

OLDER_ENGINES = tuple(
    {backend: generation}
    for backend, _, generation in (name.partition("@") for name in PROFILE.memory.engine)
    if generation
)
"""Generations of engines that the profile knows beside today's."""
SMALLEST_SHARE = 0.01
OF_ENGINES = re.compile(r"KV cache|engine|graphs|asleep")
"""Ledger lines that differ between generations."""
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
    peak_gib: float = 0.0
    """The most of any phase on a device, whatever its limit."""
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        word = "fits" if self.fits else "does not fit"
        return f"{word}: {self.phase} {self.need_gib:.1f} of {self.limit_gib:.1f} GiB, most of it {self.line}"


def verdict_of(job: Job) -> Verdict:
    """Raises UnreadableError with the planner's words where the flow is refused for another reason than memory, and
    where the verdict turns on lengths that the record does not say."""
    verdict = _verdict_as_filled(job)
    if not verdict.fits and job.share_of_free and job.generation in (None, "v0"):
        verdict = _with_share_of_free(job, verdict)
    if verdict.fits or not any(party.filled_tokens for party in job.parties):
        return verdict
    shortest = replace(job, parties=tuple(_of_one_sequence(party, job) for party in job.parties))
    if _verdict_as_filled(shortest).fits:
        raise UnreadableError("micro-batches of sequences whose lengths it does not say: the verdict turns on them")
    return verdict


def _with_share_of_free(job: Job, verdict: Verdict) -> Verdict:
    """The verdict where the engine's share is one of what the roles that stay leave free when it starts, before there
    are optimizer states: SGLang's counts its weights, vLLM's before 0.7 is taken of what they leave too. The first
    verdict if that does not fit either."""
    engine = job.party("actor_infer")
    if engine is None or not verdict.phase.startswith("actor_infer.") or "kv_fraction" not in engine.engine:
        return verdict
    others = ((name, gib) for name, gib in verdict.lines if name.split(" ")[0] != "actor_infer")
    free = verdict.limit_gib - sum(gib for name, gib in others if not name.endswith("optimizer states"))
    share = float(engine.engine["kv_fraction"])
    weights = dict(verdict.lines).get("actor_infer weights", 0.0) if engine.backend == "vllm" else 0.0
    taken = (weights + share * (free - weights)) / verdict.limit_gib
    if taken < SMALLEST_SHARE:
        return verdict
    smaller = replace(engine, engine={**engine.engine, "kv_fraction": round(taken, 4)})
    parties = tuple(smaller if party is engine else party for party in job.parties)
    generation = "v0" if engine.backend == "vllm" else job.generation
    again = _verdict_as_filled(replace(job, parties=parties, generation=generation))
    return again if again.fits else verdict


def _of_one_sequence(party: Party, job: Job) -> Party:
    """With the fewest tokens that a micro-batch has where it takes one longest sequence."""
    if not party.filled_tokens:
        return party
    update = None if party.update_tokens is None else min(party.update_tokens, job.longest)
    forward = None if party.forward_tokens is None else min(party.forward_tokens, job.longest)
    return replace(party, update_tokens=update, forward_tokens=forward)


def _verdict_as_filled(job: Job) -> Verdict:
    text, left_out = flow_of(job)
    others = OLDER_ENGINES if job.generation is None else ()
    return verdict_of_document(text, left_out, _profile_of(job), others)


def _profile_of(job: Job) -> Profile:
    growth = 0.0 if job.empties_cache else PROFILE.memory.growth_share
    generation = {"vllm": job.generation} if job.generation else {}
    memory = structs.replace(PROFILE.memory, growth_share=growth)
    return structs.replace(PROFILE, memory=memory, generation=generation)


def verdict_of_document(
    text: str,
    left_out: tuple[str, ...] = (),
    profile: Profile = PROFILE,
    others: Sequence[Mapping[str, str]] = OLDER_ENGINES,
) -> Verdict:
    """Of a flow's YAML under `profile` and, if that does not fit, with engines of `others` (most records do not say
    which version they ran). Raises UnreadableError as `verdict_of` does."""
    try:
        known = _memory(text, profile)
        if not _fits(known) and not _is_hopeless(known):
            older = (_memory(text, structs.replace(profile, generation=dict(older))) for older in others)
            known = next((memory for memory in older if _fits(memory)), known)
    except FlowError as error:
        told = next(iter(error.diagnostics))
        raise UnreadableError(f"the planner refuses the flow: {told.code} {told.headline}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, InternalError) as error:
        raise UnreadableError(f"the planner fails: {type(error).__name__}: {error}") from None
    tightest = _tightest(known)
    if tightest is None:
        raise UnreadableError("the planner gives no memory")
    lines = sorted(((_name(each), each.value / GIB) for each in tightest.lines), key=lambda each: -each[1])
    own = next((name for name, _ in lines if name not in NOT_OF_A_ROLE), "")
    return Verdict(
        fits=_fits(known),
        phase=tightest.phase,
        line=own,
        lines=tuple(lines),
        need_gib=tightest.peak_bytes / GIB,
        limit_gib=tightest.limit_bytes / GIB,
        peak_gib=max(entry.peak_bytes for entry in known if entry.pool != HOST) / GIB,
        left_out=left_out,
    )


def _is_hopeless(memory: Sequence[Memory]) -> bool:
    """Whether some phase would not fit even if what differs between generations of engines were nothing."""
    return any(
        sum(each.value for each in entry.lines if not OF_ENGINES.search(each.what)) > entry.limit_bytes
        for entry in memory
    )


def _fits(memory: Sequence[Memory]) -> bool:
    return all(entry.peak_bytes <= entry.limit_bytes for entry in memory)


def _memory(text: str, profile: Profile) -> tuple[Memory, ...]:
    """What the placement that is chosen needs. `search` is `place` without the words: why, and what would help."""
    spec = loads(text, folder=FOLDER)
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster = lower_stage_cluster(spec, 0)
    request = structs.replace(lower_placement(spec, 0), profile=profile)
    return search(graph, cluster, request, shapes_of(graph, spec.folder)).best.laid.memory


def _tightest(entries: Sequence[Memory]) -> Memory | None:
    return max(entries, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes), default=None)


def _name(line: object) -> str:
    role, what = getattr(line, "role", None), str(getattr(line, "what", ""))
    return what if role is None else f"{role} {what}"
