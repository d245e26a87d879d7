"""A file far over its limit is told from its size or its start: what is read of it does not grow with it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.profile import load_profile
from flowrl.cli.voice import Voice
from flowrl.compiler.lower import lengths
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.digests import digest_file
from flowrl.plan.io import LARGEST_BYTES, read
from flowrl.runtime.runfile import PLAN, RUN, RunFile, RunStatus, load_run, write_run_file
from flowrl.spec import load, loads
from flowrl.spec.cluster_file import load_cluster
from tests.placement.flows import GRPO

MEBIBYTE = 1 << 20
SIZE = 64 * MEBIBYTE


def large(path: Path) -> Path:
    """A file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python held at most for it."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def codes_of(work: Callable[[], object]) -> list[str]:
    with pytest.raises(FlowError) as caught:
        work()
    return [each.code for each in caught.value.diagnostics]


def included(path: Path) -> object:
    return loads(f"include: [{path.name}]\n{GRPO}", folder=str(path.parent))


@pytest.mark.parametrize(
    ("door", "code"),
    [(load, "FR0004"), (load_cluster, "FR0004"), (load_profile, "FR0004"), (included, "FR0004"), (read, "FR0705")],
)
def test_every_door_looks_at_the_size_first(door: Callable[[Path], object], code: str, tmp_path: Path) -> None:
    path = large(tmp_path / "large.yaml")
    assert codes_of(lambda: door(path)) == [code]  # imports are not what is measured
    assert peak_of(lambda: codes_of(lambda: door(path))) < 8 * MEBIBYTE


def test_a_plan_too_large_is_told_with_its_size(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match=f"{SIZE:,} bytes; at most {LARGEST_BYTES:,} are read"):
        read(large(tmp_path / "plan.json"))


def test_what_expand_would_write_can_be_read_again(tmp_path: Path) -> None:
    """A flow of nearly the limit that uses a preset: with the preset's lines it is over it."""
    path = tmp_path / "flow.yaml"
    flow = "flowrl: 1\nname: large\nuse: sft\ncluster: 8xH100-80G\nmodels: {policy: {source: Qwen/Qwen2.5-7B}}\n"
    flow += "data: {train: {source: rows.jsonl, prompt: question, response: answer}}\n"
    path.write_text(f"{flow}vars: {{x: '{'x' * (MEBIBYTE - len(flow) - 16)}'}}\n", encoding="utf-8")
    assert path.stat().st_size <= MEBIBYTE
    api.load(path)
    assert codes_of(lambda: api.expand(path)) == ["FR0004"]
    assert "# preset sft" in api.expand(path, origins=True)


def test_a_configuration_too_large_is_not_read(tmp_path: Path) -> None:
    large(tmp_path / "config.json")
    model = GRPO.replace("Qwen/Qwen2.5-7B", str(tmp_path))
    (tmp_path / "flow.yaml").write_text(model, encoding="utf-8")
    found: list[str] = []
    check = lambda: found.extend(each.code for each in api.check(tmp_path / "flow.yaml").diagnostics)  # noqa: E731
    check()
    assert peak_of(check) < 16 * MEBIBYTE
    assert found == ["FR0403"] * 2


def test_what_may_have_no_end_has_no_digest() -> None:
    assert digest_file(Path("/dev/null")) is None
    assert digest_file(Path("/dev/zero")) is None


def test_a_pipe_has_no_size_and_is_read_to_the_limit() -> None:
    assert codes_of(lambda: load("/dev/zero")) == ["FR0004"]
    assert codes_of(lambda: read(Path("/dev/zero"))) == ["FR0705"]


def test_the_plan_of_a_run_has_the_same_limit(tmp_path: Path) -> None:
    write_run_file(tmp_path, RunFile(name="large", state=RunStatus.FINISHED, folder=str(tmp_path), launcher="inline"))
    assert (tmp_path / RUN).exists()
    large(tmp_path / PLAN)
    assert codes_of(lambda: load_run(tmp_path)) == ["FR0705"]
    assert peak_of(lambda: codes_of(lambda: load_run(tmp_path))) < 8 * MEBIBYTE


def test_a_frame_is_cut_from_the_start_of_a_file(tmp_path: Path) -> None:
    path = large(tmp_path / "plan.json")
    assert peak_of(lambda: Voice().read_source(str(path))) < SIZE


def flow_with(samples: Path) -> str:
    return GRPO + f"assume: {{actor_infer.generate: {{response_tokens: {{samples: {samples}}}}}}}\n"


def test_lengths_are_read_line_by_line(tmp_path: Path) -> None:
    path, flow = tmp_path / "samples.jsonl", tmp_path / "flow.yaml"
    row = '{"response": "%s", "response_tokens": 7}\n' % ("x" * MEBIBYTE)
    path.write_text(row * 64, encoding="utf-8")
    flow.write_text(flow_with(path), encoding="utf-8")
    assert tuple(lengths.lengths_in(path)) == (7.0,) * 64
    assert peak_of(lambda: tuple(lengths.lengths_in(path))) < 16 * MEBIBYTE
    assert not [each for each in api.check(flow).diagnostics if each.code == "FR0526"]


def test_a_line_of_lengths_without_end_is_told(tmp_path: Path) -> None:
    flow = tmp_path / "flow.yaml"
    flow.write_text(flow_with(Path("/dev/zero")), encoding="utf-8")
    [told] = [each for each in api.check(flow).diagnostics if each.code == "FR0526"]
    assert f"a line has {lengths.LONGEST_LINE:,} characters" in str(told)
