"""What is too much for one flow is refused where it is too much, in a moment; what lies at the limit is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowrl import api
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.shorthand import MOST_PLANNED, parse_cluster
from flowrl.spec import loads
from flowrl.spec.limits import MOST_EDGES, MOST_ENTRIES, MOST_TEMPLATES

HEAD = "flowrl: 1\nname: large\nstep: {prompts: 8}\n"
SECONDS = 20
"""Of processor time, ten times what fuzzing allows: this is no benchmark, it tells seconds from hours."""


def codes(text: str) -> set[str]:
    try:
        loads(HEAD + text)
    except FlowError as error:
        return {each.code for each in error.diagnostics}
    return set()


def section(key: str, count: int) -> str:
    if key in ("edges", "allow", "stages"):
        return f"{key}: [{', '.join(str(n) for n in range(count))}]\n"
    return f"{key}:\n" + "".join(f"  n{n}: {{}}\n" for n in range(count))


@pytest.mark.parametrize("key", sorted(MOST_ENTRIES))
def test_sections_end_at_their_limit(key: str) -> None:
    assert "FR0032" not in codes(section(key, MOST_ENTRIES[key]))
    assert codes(section(key, MOST_ENTRIES[key] + 1)) == {"FR0032"}


def test_sections_of_a_stage_have_limits_too() -> None:
    roles = section("roles", MOST_ENTRIES["roles"] + 1).replace("\n", "\n    ")
    assert codes(f"stages:\n  - name: one\n    {roles}\n") == {"FR0032"}


def edge(left: int, right: int) -> str:
    sources = ", ".join(f"r{n}.score" for n in range(left))
    targets = ", ".join(f"a{n}.estimate" for n in range(right))
    return f"edges:\n  - {sources} -> {targets}\n"


def test_edges_are_counted_after_commas_are_fanned_out() -> None:
    assert "FR0030" not in codes(edge(100, MOST_EDGES // 100))
    assert codes(edge(100, MOST_EDGES // 100 + 1)) == {"FR0030"}


def test_templates_are_counted_wherever_they_stand() -> None:
    lines = "".join(f"  - '{{{{ {n} }}}}'\n" for n in range(MOST_TEMPLATES))
    assert "FR0033" not in codes("allow:\n" + lines)
    assert codes(
        "allow:\n" + lines[: -len("  - '{{ 499 }}'\n")] + "  - a\nname2: '{{ 1 }}'\nvars: {x: '{{ 2 }}'}\n"
    ) == {"FR0033"}


def test_devices_end_at_their_limit() -> None:
    assert parse_cluster(f"{MOST_PLANNED // 8}x8xH100-80G").device_count == MOST_PLANNED
    with pytest.raises(FlowError) as caught:
        parse_cluster(f"{MOST_PLANNED // 8 + 1}x8xH100-80G")
    assert [each.code for each in caught.value.diagnostics] == ["FR0031"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("vars:\n" + "".join(f"  v{n}: '{{{{ v{n + 1} }}}}'\n" for n in range(499)), id="chain"),
        pytest.param("edges:\n" + "".join(f"  - {{edge: r{n}.score -> b.score, remove: true}}\n" for n in range(3000)),
                     id="removed-edges"),
        pytest.param(f"edges:\n  - {', '.join(['r.score'] * 20_000)} -> b.score\n", id="the-same-end"),
        pytest.param("roles:\n" + "".join(f"  r{n}: {{kid: reward}}\n" for n in range(1000)), id="misspelt-roles"),
        pytest.param("roles:\n" + "".join(f"  r{n}:\n" for n in range(1000)), id="empty-roles"),
        pytest.param("allow: [" + "a, " * 49_000 + "}\n", id="a-fault-at-the-end"),
        pytest.param("? [a]\n: 1\n" * 10_000, id="keys-that-are-lists"),
    ],
)  # fmt: skip
def test_large_flows_are_told_in_seconds(text: str) -> None:
    start = time.process_time()
    assert codes(text)
    assert time.process_time() - start < SECONDS


def test_a_long_cycle_is_found_in_seconds(tmp_path: Path) -> None:
    count = 900
    roles = "".join(f"  r{n}: {{kind: reward, function: 'f.py:f'}}\n" for n in range(count))
    edges = "".join(f"  - r{n}.score -> r{(n + 1) % count}.score\n" for n in range(count))
    (tmp_path / "f.py").write_text("def f(rewards):\n    return rewards\n")
    (tmp_path / "flow.yaml").write_text(f"{HEAD}roles:\n{roles}edges:\n{edges}")
    start = time.process_time()
    found = api.check(tmp_path / "flow.yaml").diagnostics
    assert [each.code for each in found] == ["FR0302"]
    assert time.process_time() - start < SECONDS


def test_an_end_without_an_op_is_refused_where_it_stands() -> None:
    """A role may be an end of `=>`; that must not make it a call."""
    text = "edges:\n  - a => b\n  - c.generate <-> a\n"
    assert "FR0110" in codes(text)


def test_nothing_to_train_has_a_place(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(HEAD + "roles: {advantage: {estimator: grpo}}\n")
    (found,) = api.check(tmp_path / "flow.yaml").diagnostics
    assert (found.code, found.labels[0].span.line) == ("FR0309", 3)
