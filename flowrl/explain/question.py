"""The grammar of `flowrl why-not`: a question about a placement as wishes that hold together.

    question = wish {"," wish}
    wish     = ROLE "on" ["pool"] POOL              in that pool
             | ROLE "with" ROLE {"and" ROLE}        in one pool
             | ROLE {"and" ROLE} "apart"            alone, or each in a pool of its own
             | ROLE AXIS {AXIS}                     cut so: tp4, pp2, cp2, ep8
             | ROLE ("stays" | "leaves")            on its devices while others work, or not
             | "recompute" MODE "of" ROLE           none, selective or full
             | ["pool"] POOL NUMBER ["gpus"]        as many devices
             | "colocated" | "disaggregated"

Takes the text and the names of a plan; gives wishes or says what is wrong, at its place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Label, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.placement.request import Mode

SOURCE = "the question"
"""What spans into it name as their file."""
FORMS = (
    "ROLE on POOL",
    "ROLE with ROLE",
    "ROLE and ROLE apart",
    "ROLE tp4 pp2",
    "ROLE stays",
    "ROLE leaves",
    "recompute none of ROLE",
    "POOL 8 gpus",
    "colocated",
    "disaggregated",
)
AXES = ("tp", "pp", "cp", "ep")
MODES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that is asked for. Fields that are not its own are empty."""

    text: str
    """As it was written."""
    roles: tuple[str, ...] = ()
    """Of a `with`: all that share a pool, the first of which moves."""
    pool: str | None = None
    apart: bool = False
    gpus: int | None = None
    axes: dict[str, int] = field(default_factory=dict[str, int])
    stays: bool | None = None
    recompute: str | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int

    @property
    def lower(self) -> str:
        return self.text.lower()

    @property
    def span(self) -> Span:
        return Span(SOURCE, 1, self.start + 1, 1, self.end + 1)


def parse(question: str, roles: Sequence[str], pools: Sequence[str]) -> tuple[Wish, ...]:
    """The wishes of a question about a plan with these roles on devices and these pools. Raises FlowError: FR0731 for
    what is no question, FR0732 for a name that the plan has not, FR0733 for wishes that exclude each other."""
    names = _Names(tuple(roles), tuple(pools))
    found: list[tuple[Wish, Span]] = []
    for words in _parts(question):
        found.append((names.wish(words, question), _span(words)))
    if not found:
        raise FlowError(_no_question(Span(SOURCE, 1, 1, 1, 2), "it is empty"))
    contradiction = next(_contradictions(found), None)
    if contradiction is not None:
        raise FlowError(contradiction)
    return tuple(wish for wish, _ in found)


def _parts(question: str) -> Iterator[list[_Word]]:
    words: list[_Word] = []
    for match in re.finditer(r",|[^\s,]+", question.replace("\n", " ")):
        if match.group() == ",":
            if not words:
                raise FlowError(_no_question(_Word(",", *match.span()).span, "nothing stands before the comma"))
            yield words
            words = []
        else:
            words.append(_Word(match.group(), *match.span()))
    if words:
        yield words


def _span(words: Sequence[_Word]) -> Span:
    return Span(SOURCE, 1, words[0].start + 1, 1, words[-1].end + 1)


def _no_question(span: Span, problem: str, helps: Sequence[Help] = ()) -> Diagnostic:
    return diagnose("FR0731", span, problem=problem, forms="; ".join(FORMS), helps=helps)


@dataclass(frozen=True, slots=True)
class _Names:
    roles: tuple[str, ...]
    pools: tuple[str, ...]

    def wish(self, words: list[_Word], question: str) -> Wish:
        text = question[words[0].start : words[-1].end]
        lower = [word.lower for word in words]
        if len(words) == 1 and lower[0] in (Mode.COLOCATED, Mode.DISAGGREGATED):
            return Wish(text, mode=Mode(lower[0]))
        if lower[0] == "recompute":
            return self._recompute(words, text)
        if lower[-1] == "apart":
            return Wish(text, roles=self._list(words[:-1], words), apart=True)
        if len(words) == 2 and lower[1] in ("stays", "leaves"):
            return Wish(text, roles=(self._role(words[0]),), stays=lower[1] == "stays")
        if lower[1:2] == ["with"]:
            return self._with(words, text)
        if lower[1:2] == ["on"]:
            return self._on(words, text)
        return self._sized(words, text)

    def _sized(self, words: list[_Word], text: str) -> Wish:
        """A role with axes, or a pool with a number."""
        rest = words[1:]
        own = words[1:] if words[0].lower == "pool" else words
        if len(own) in (2, 3) and own[1].text.isdecimal() and (len(own) == 2 or own[2].lower in ("gpu", "gpus")):
            if int(own[1].text) < 1:
                raise FlowError(_no_question(own[1].span, "a pool has one device at least"))
            return Wish(text, pool=self._pool(own[0]), gpus=int(own[1].text))
        axes = [re.fullmatch(r"(tp|pp|cp|ep)[=]?(\d+)", word.lower) for word in rest]
        if rest and all(axes):
            sizes = {match[1]: int(match[2]) for match in axes if match is not None}
            zero = next((word for word, match in zip(rest, axes, strict=True) if match and int(match[2]) < 1), None)
            if zero is not None:
                raise FlowError(_no_question(zero.span, "an axis has one part at least"))
            return Wish(text, roles=(self._role(words[0]),), axes=sizes)
        odd = next((word for word, match in zip(rest, axes, strict=True) if match is None), words[0])
        if re.fullmatch(r"dp=?\d+", odd.lower):
            raise FlowError(_no_question(odd.span, "dp follows from the devices of the pool: ask for those"))
        raise FlowError(_no_question(odd.span, f"`{odd.text}` is not what can stand here", _near_words(odd)))

    def _recompute(self, words: list[_Word], text: str) -> Wish:
        if len(words) != 4 or words[2].lower != "of":
            raise FlowError(_no_question(_span(words), "it is `recompute MODE of ROLE`"))
        if words[1].lower not in MODES:
            raise FlowError(_no_question(words[1].span, f"`{words[1].text}` is none of {', '.join(MODES)}"))
        return Wish(text, roles=(self._role(words[3]),), recompute=words[1].lower)

    def _with(self, words: list[_Word], text: str) -> Wish:
        if len(words) < 3:
            raise FlowError(_no_question(words[1].span, "`with` stands between two roles"))
        roles = (self._role(words[0]), *self._list(words[2:], words))
        if len(set(roles)) < len(roles):
            raise FlowError(_no_question(_span(words), "a role is always with itself"))
        return Wish(text, roles=roles)

    def _on(self, words: list[_Word], text: str) -> Wish:
        where = words[3:] if len(words) > 3 and words[2].lower == "pool" else words[2:]
        if len(where) != 1:
            raise FlowError(_no_question(words[1].span, "`on` stands between a role and a pool"))
        return Wish(text, roles=(self._role(words[0]),), pool=self._pool(where[0]))

    def _list(self, words: list[_Word], whole: list[_Word]) -> tuple[str, ...]:
        """Roles with `and` between them; `whole` is the wish."""
        if not words or len(words) % 2 == 0:
            raise FlowError(_no_question(_span(words or whole), "roles are missing"))
        for word in words[1::2]:
            if word.lower != "and":
                raise FlowError(_no_question(word.span, f"`and` stands between two roles, not `{word.text}`"))
        return tuple(self._role(word) for word in words[::2])

    def _role(self, word: _Word) -> str:
        if word.text not in self.roles:
            raise FlowError(_unknown("role", word, self.roles))
        return word.text

    def _pool(self, word: _Word) -> str:
        if word.text not in self.pools:
            raise FlowError(_unknown("pool", word, self.pools))
        return word.text


def _near_words(word: _Word) -> list[Help]:
    near = near_names(word.lower, ["apart", "stays", "leaves", "with", "colocated", "disaggregated", "recompute"])
    return [Help(text=f"a word with a near name exists: `{near[0]}`")] if near else []


def _unknown(kind: str, word: _Word, known: Sequence[str]) -> Diagnostic:
    near = near_names(word.text, known)
    helps = [Help(text=f"a {kind} with a near name exists: `{near[0]}`")] if near else []
    names = ", ".join(f"`{name}`" for name in known)
    there = f"the {kind}s are {names}" if len(known) > 1 else f"the only {kind} is {names}"
    return diagnose("FR0732", word.span, name=word.text, kind=kind, known=there, helps=helps)


def _contradictions(found: Sequence[tuple[Wish, Span]]) -> Iterator[Diagnostic]:
    """Two wishes of which only one can hold."""
    for place, (wish, span) in enumerate(found):
        for other, also in found[:place]:
            problem = _clash(other, wish)
            if problem is not None:
                yield diagnose("FR0733", span, also=[Label(also, "asked for here")], problem=problem)


def _clash(one: Wish, other: Wish) -> str | None:
    shared = set(one.roles) & set(other.roles)
    role = next((name for name in one.roles if name in shared), "")
    if one.mode is not None and other.mode is not None and one.mode is not other.mode:
        return f"a plan is {one.mode} or {other.mode}"
    if one.mode is Mode.COLOCATED or other.mode is Mode.COLOCATED:
        spread = other if one.mode is Mode.COLOCATED else one
        if spread.apart or (spread.gpus is not None and spread.pool != "all"):
            return "colocated roles share one pool, all devices of it"
    if role and one.stays is not None and other.stays not in (None, one.stays):
        return f"`{role}` stays or leaves"
    if role and one.recompute is not None and other.recompute not in (None, one.recompute):
        return f"`{role}` recomputes {one.recompute} or {other.recompute}"
    if role and one.axes and other.axes and any(one.axes.get(a, n) != n for a, n in other.axes.items()):
        return f"`{role}` has one layout"
    if role and one.pool is not None and other.pool not in (None, one.pool) and one.gpus is other.gpus is None:
        return f"`{role}` is in one pool"
    if one.pool is not None and one.pool == other.pool and one.gpus is not None and other.gpus not in (None, one.gpus):
        return f"pool `{one.pool}` has {one.gpus} devices or {other.gpus}"
    return _parted(one, other)


def _parted(one: Wish, other: Wish) -> str | None:
    for apart, joined in ((one, other), (other, one)):
        is_joined = len(joined.roles) > 1 and not joined.apart
        both = [name for name in apart.roles if name in joined.roles]
        if apart.apart and is_joined and (len(both) > 1 or (len(apart.roles) == 1 and both)):
            return f"{' and '.join(f'`{name}`' for name in both)} can't be both apart and with another"
    return None
