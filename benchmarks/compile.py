"""How long FlowRL takes to import, to check a flow, and to compile ever larger graphs.

    python benchmarks/compile.py             # exits 1 if a line is over its bar

Each line is the median of some runs, beside its bar and its ratio to a reference of the same run: a bare interpreter
for imports, `yaml.safe_load` of the same text for flows. A benchmark, not a test: a busy machine makes every line
slower, the ratios much less.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

FLOWS = Path(__file__).resolve().parent / "flows"
TWELVE = FLOWS / "twelve_roles.yaml"
IMPORT_RUNS = 7
CHECK_RUNS = 7
GRAPH_RUNS = 3
SIZES = (100, 300, 1000)
IMPORTS: tuple[tuple[str, str, float | None], ...] = (
    ("import flowrl", "import flowrl", 0.30),
    ("import flowrl.spec", "import flowrl.spec", None),
    ("what `flowrl check` imports", "from flowrl import api", None),
)
"""Words, code, bar in seconds."""
CHECK_SECONDS = 0.150
GRAPH_SECONDS = 3.0

CELL = 8
"""Ops of a cell: four functions, three rewards that join two of them each, one that joins these."""
FIXED = 5
"""Ops of every generated graph: data, generate, log_probs, estimate, update."""


def median(runs: int, work: Callable[[], object]) -> float:
    """Wall-clock seconds of `work`, the median of some runs."""
    seconds: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def in_a_process(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def row(words: str, seconds: float, bar: float | None, reference: float) -> bool:
    """Print a line of the table; whether it holds its bar."""
    holds = bar is None or seconds <= bar
    shown = "" if bar is None else f"{bar * 1000:7,.0f} ms   {'ok' if holds else 'OVER'}"
    sys.stdout.write(f"{words:<44}{seconds * 1000:9,.1f} ms{seconds / reference:9.1f} x  {shown}\n")
    sys.stdout.flush()
    return holds


def graph_flow(ops: int) -> tuple[str, str]:
    """A flow of about so many ops (never more) and its functions: cells of forks and joins, and a tree of joins over
    them."""
    roles: list[str] = []
    edges: list[str] = []
    functions: list[str] = []
    tops: list[str] = []
    while len(roles) + CELL + joins_of(len(tops) + 1) + FIXED <= ops:
        tops.append(_cell(len(tops), roles, edges, functions))
    level = 0
    while len(tops) > 1:
        tops = [_join(f"join{level}_{i}", tops[i : i + CELL], roles, edges) for i in range(0, len(tops), CELL)]
        level += 1
    lines = [HEAD, *roles, "edges:", "  - data.train -> actor_infer.generate", *edges, TAIL.format(top=tops[0])]
    return "\n".join(lines), "\n\n".join(functions)


def joins_of(tops: int) -> int:
    """Ops of the tree of joins over so many cells."""
    total = 0
    while tops > 1:
        tops = -(-tops // CELL)
        total += tops
    return total


HEAD = """flowrl: 1
name: generated
cluster: 8xH100-80G
models: {policy: {source: Qwen/Qwen2.5-0.5B-Instruct}}
data: {train: {source: train.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 512}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 512}}
  advantage: {estimator: reinforce}"""
TAIL = """  - actor_infer.generate -> actor_train.log_probs
  - {top}.score -> advantage.estimate
  - advantage.estimate, actor_train.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 64, samples_per_prompt: 4, updates: 2}}
run: {{steps: 10}}
"""


def _cell(number: int, roles: list[str], edges: list[str], functions: list[str]) -> str:
    calls = [f"f{number}_{place}" for place in range(4)]
    for name in calls:
        outputs = f"{{c_{name}: {{unit: sample, dtype: f32}}}}"
        roles.append(f'  {name}: {{kind: function, function: "functions.py:{name}", unit: sample, outputs: {outputs}}}')
        functions.append(f"def {name}(response):\n    return [float(len(each)) for each in response]")
        edges.append(f"  - actor_infer.generate -> {name}.call")
    scores = [f"r{number}_{place}" for place in range(3)]
    for place, name in enumerate(scores):
        one, other = calls[place], calls[place + 1]
        roles.append(f'  {name}: {{kind: reward, function: "functions.py:{name}"}}')
        functions.append(f"def {name}(c_{one}, c_{other}):\n    return [a + b for a, b in zip(c_{one}, c_{other})]")
        edges.append(f"  - {one}.call, {other}.call -> {name}.score")
    return _join(f"cell{number}", scores, roles, edges)


def _join(name: str, parts: list[str], roles: list[str], edges: list[str]) -> str:
    weights = ", ".join(f"{part}: 1.0" for part in parts)
    roles.append(f"  {name}: {{kind: reward, combine: {{{weights}}}}}")
    edges.append(f"  - {', '.join(f'{part}.score' for part in parts)} -> {name}.score")
    return name


def compiled(path: Path, instruments: tuple[object, ...] = ()) -> int:
    """Load, lower and run all passes; the ops of the graph."""
    from flowrl.compiler.lower.graph import lower_stage
    from flowrl.compiler.passes.pipeline import run_passes
    from flowrl.spec import load

    graph, _ = run_passes(lower_stage(load(path), 0), instruments)  # type: ignore[arg-type]
    return len(graph.ops)


def imports() -> bool:
    bare = median(IMPORT_RUNS, in_a_process("pass"))
    row("a bare interpreter (reference)", bare, None, bare)
    held = [row(words, median(IMPORT_RUNS, in_a_process(code)), bar, bare) for words, code, bar in IMPORTS]
    return all(held)


def twelve_roles() -> bool:
    from flowrl import api

    text = TWELVE.read_text(encoding="utf-8")
    reference = median(CHECK_RUNS, lambda: yaml.safe_load(text))
    row("yaml.safe_load of twelve_roles.yaml (ref.)", reference, None, reference)
    api.check(TWELVE)
    return row("check twelve_roles.yaml", median(CHECK_RUNS, lambda: api.check(TWELVE)), CHECK_SECONDS, reference)


def graphs() -> bool:
    from flowrl import api
    from flowrl.compiler.passes.instruments import Timing

    holds = True
    timings: dict[int, Timing] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            text, functions = graph_flow(size)
            path = Path(folder) / f"flow{size}.yaml"
            path.write_text(text)
            (Path(folder) / "functions.py").write_text(functions)
            timings[size] = Timing()
            ops = compiled(path, (timings[size],))
            reference = median(GRAPH_RUNS, lambda text=text: yaml.safe_load(text))
            row(f"yaml.safe_load of {ops} ops (reference)", reference, None, reference)
            seconds = median(GRAPH_RUNS, lambda path=path: compiled(path))
            holds &= row(f"load, lower and all passes, {ops} ops", seconds, GRAPH_SECONDS, reference)
            seconds = median(1, lambda path=path: api.check(path))
            holds &= row(f"check ({ops} ops, placed to fit, program)", seconds, GRAPH_SECONDS, reference)
    sys.stdout.write(f"\n{'pass, ms':<24}" + "".join(f"{size:>10,}" for size in SIZES) + "\n")
    for name in timings[SIZES[0]].seconds:
        sys.stdout.write(f"{name:<24}" + "".join(f"{timings[s].seconds[name] * 1000:10,.1f}" for s in SIZES) + "\n")
    return holds


def main() -> int:
    sys.stdout.write(f"{'':<44}{'median':>12}{'ratio':>11}  {'bar':>10}\n")
    held = [imports(), twelve_roles(), graphs()]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
