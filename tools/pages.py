"""Writes the parts of pages that are made from the code, so that they are never wrong for long.

    python tools/pages.py            # write them
    python tools/pages.py --check    # exit 1 and name those that are not as written

README.md gets the picture of a plan, docs/reference/flow.md the keys of the language, docs/reference/ops.md the ops,
losses and estimators, docs/reference/presets.md the presets, docs/errors/README.md the codes, docs/status.md what runs.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flowrl import api
from flowrl.diag.catalogue import CODES
from flowrl.graph.graph import Input
from flowrl.graph.signatures import BUILTIN_FUNCTIONS, BUILTIN_REWARDS, ESTIMATORS, FIELDS, LOSSES, OPS
from flowrl.graph.types import Field
from flowrl.machine.devices import ALIASES, DEVICE_CARDS
from flowrl.machine.models import CARDS
from flowrl.machine.traits import TRAITS
from flowrl.spec.presets import preset_head, preset_names
from tools.status import status

ROOT = Path(__file__).resolve().parents[1]
PICTURED = "examples/ppo_7b.yaml"
PICTURE_WIDTH = 100
TEMPLATE: Mapping[str, object] = {"type": "string", "pattern": r"\{[{%]"}
"""Stands beside the words of a key; FLOW_HEAD says it once."""
WHOLE = "Whole"
"""Definitions with this prefix say what must be given, and no key of their own."""
Json = Mapping[str, Any]

FLOW_HEAD = """# What may stand in a flow

Every key with its type, unit and default, made from the documents in `flowrl/spec/` (`flowrl schema` prints the same as
a JSON Schema). A key that is not listed is an error. Any value may be a template in quotes, `"{{ … }}"`, over `vars`;
the result has the type that stands here. An installed package may add keys of its backend to `generate`, `update` and
`engine` (docs/adr/0015); they are listed with the name of the package.

A role's `kind` may be left out for `actor_train` and `critic` (trainer), `actor_infer` (generator), `reference`
(scorer), `reward` (reward) and `advantage` (estimator). An edge is written `a, b -> c` (data), `a => b` (weights) or
`a <-> b` (interaction), or as a mapping `{edge: "a -> b", …}` with the keys of `Edge` beside the arrow.
[ops.md](ops.md) lists the ops of each kind, what they read and write, the losses, estimators, backends and devices.
"""

OPS_HEAD = """# Ops, columns, losses, estimators

What the names in a flow stand for, made from the tables that the compiler reads. [flow.md](flow.md) has the keys.

## Ops

An edge names ops: `role.op`, for another call with parameters of its own `role.op@label`, for a data set `data.NAME`.
An op finds a column by its name among what the ops upstream of it made; where two made it, `inputs:` on the reading
role chooses one. `data.NAME` gives `prompt` and the columns under `keep`, and `response`, `pair_sign` or `images` where
the data set names them. An inner call is drawn from the edges into the judge that makes it: `flowrl show` shows it, and
no edge may name it.

"""
VARYING = {
    ("trainer", "update"): ("what its loss reads, below", "metrics, and the next version of its weights"),
    ("reward", "score"): (
        "the parameters of its function; `prompt` and `response` for a model; the answers of `ask` for a judge",
        "`rewards`",
    ),
    ("reward", "compare"): ("`prompt`, `response`; the answers of `ask_pairs` for a judge", "`rewards`"),
    ("estimator", "estimate"): ("what its estimator reads, below", "what its estimator writes, below"),
    ("filter", "select"): ("`by`, or the parameters of its function", "`keep`; rows that do not stay leave the step"),
    ("env", "reset"): ("columns of the data that its `reset` takes", "`prompt` of each sample"),
    ("env", "step"): ("the turn of each generator on its `<->`", ""),
    ("function", "call"): ("the parameters of its function", "its `outputs`"),
}
"""Ops whose columns follow from the role's keys."""

PRESETS_HEAD = """# Presets

A preset is a flow in YAML that ships with FlowRL: `use: NAME` starts from it, and your own keys override its. Nothing
in it is code. `flowrl init --preset NAME` writes a first flow with what must be given; `flowrl expand --origins FILE`
shows every value of a flow and where it came from. Presets that need what is not built yet check and plan; `run` says
so before anything starts.
"""

CODES_HEAD = """# Codes

`flowrl explain CODE` prints a page. Ranges: FR00 files and YAML · FR01 schema · FR02 names and types · FR03 graph
shape · FR04 models and layouts · FR05 placement and memory · FR06 schedule · FR07 plan file · FR08 backends · FR09 run
time · FR99 internal.

| code | headline | kind | exit code |
|---|---|---|---|
"""


def readme() -> str:
    """README.md with the plan of `PICTURED` between its markers."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, mark, rest = text.partition("<!-- plan -->\n")
    _, end, after = rest.partition("<!-- /plan -->")
    with contextlib.chdir(ROOT):
        plan = api.plan(PICTURED)
    picture = "\n".join(line.rstrip() for line in api.render(plan, width=PICTURE_WIDTH).splitlines()).strip("\n")
    return f"{before}{mark}\n```text\n$ flowrl plan {PICTURED}\n\n{picture}\n```\n\n{end}{after}"


def codes() -> str:
    """docs/errors/README.md: one line per code."""
    rows = [
        f"| [{code.id}]({code.id}.md) | {code.headline} | {code.severity} | {code.exit_code} |"
        for code in sorted(CODES.values(), key=lambda code: code.id)
    ]
    return CODES_HEAD + "\n".join(rows) + "\n"


def presets() -> str:
    """docs/reference/presets.md: what each preset is, its paper, and what a flow must give."""
    parts = [PRESETS_HEAD]
    for name in preset_names():
        head = preset_head(name)
        link = f"[`{name}`](../../flowrl/presets/{name}.yaml)"
        parts.append(f"\n## {name}\n\n{head.what}\n\n- File: {link}\n- Paper: {head.paper}\n- You give: {head.give}\n")
    return "".join(parts)


def flow() -> str:
    """docs/reference/flow.md: one section per document of the language."""
    schema = api.schema()
    definitions = cast("Mapping[str, Json]", schema.get("$defs", {}))
    sections = [section("Flow", schema)]
    shown = {name: definition for name, definition in definitions.items() if not name.startswith(WHOLE)}
    sections += [section(title(name), definition) for name, definition in sorted(shown.items())]
    return FLOW_HEAD + "".join(part for part in sections if part)


def title(name: str) -> str:
    """`TrainerRole` → Trainer role, `KlDocument` → Kl."""
    words = re.findall("[A-Z][a-z]*", name.removesuffix("Document"))
    return " ".join(words).capitalize()


def section(name: str, definition: Json) -> str:
    """A heading, what the document is for, and a table of its keys; nothing for a definition without keys."""
    definition = long_form(definition)
    properties = cast("Mapping[str, Json]", definition.get("properties", {}))
    if not properties:
        return ""
    required = set(cast("list[str]", definition.get("required", [])))
    rows = [row(key, value, key in required) for key, value in properties.items()]
    parts = [f"## {name}", one_line(definition), "\n".join(["| key | type | meaning |", "|---|---|---|", *rows])]
    return "".join(f"\n{part}\n" for part in parts if part)


def long_form(definition: Json) -> Json:
    """The mapping among the forms of a definition: an edge is a string or a mapping."""
    forms = cast("list[Json]", definition.get("anyOf", []))
    return next((form for form in forms if "properties" in form), definition)


def row(key: str, value: Json, required: bool) -> str:
    shown = f"`{key}`" + (" (required)" if required else "")
    return f"| {shown} | {type_of(value)} | {one_line(value)} |"


def one_line(value: Json) -> str:
    return " ".join(str(value.get("description", "")).split()).replace("|", "\\|")


def type_of(value: Json) -> str:
    """A short word for the type of a schema's value."""
    if "$ref" in value:
        name = title(str(value["$ref"]).rpartition("/")[2])
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if "enum" in value or "const" in value:
        choices = cast("list[object]", value.get("enum", [value.get("const")]))
        return ", ".join(f"`{choice}`" for choice in choices)
    for union in ("anyOf", "oneOf"):
        if union in value:
            parts = [type_of(part) for part in cast("list[Json]", value[union]) if part != TEMPLATE]
            return " or ".join(dict.fromkeys(part for part in parts if part != "null"))
    types = value.get("type", "any")  # of several the last is `string`, for templates
    kind = types if isinstance(types, str) else cast("list[str]", types)[0]
    if kind == "array":
        return f"list of {type_of(cast('Json', value.get('items', {})))}"
    inner = value.get("additionalProperties")
    if kind == "object":
        return f"mapping of {type_of(cast('Json', inner))}" if isinstance(inner, Mapping) and inner else "mapping"
    return kind


def ops() -> str:
    """docs/reference/ops.md: what ops, losses and estimators read and write, from the tables of the compiler."""
    parts = (OPS_HEAD + _ops(), _columns(), _losses(), _estimators(), _functions(), _backends(), _devices(), _models())
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


def _read(inputs: Iterable[Input]) -> str:
    return ", ".join(f"`{i.slot}`" + (" if there is one" if i.optional else "") for i in inputs) or "–"


def _written(fields: Iterable[Field]) -> str:
    return _names(field.name for field in fields)


def _ops() -> str:
    rows: list[tuple[str, ...]] = []
    for op in OPS:
        reads, writes = VARYING.get((op.kind, op.method), ("", ""))
        head = f", head {' or '.join(op.heads)}" if op.heads else ""
        note = ", a judge's inner call" if op.inner else ""
        rows.append(
            (f"{op.kind}{head}", f"`{op.method}`{note}", reads or _read(op.reads), writes or _written(op.writes))
        )
    return _table(("kind of role", "op", "reads", "writes"), rows)


def _columns() -> str:
    rows = [(f"`{field.name}`", str(field.unit), f"`{field.dtype}`") for field in FIELDS.values()]
    told = """## Columns

A value belongs to a token, a turn, a sample or a prompt. A coarse one is repeated for a finer reader; the other way is
an error. A denoiser has `latents`, `sigmas` and `step_noise` in place of `tokens`: its tokens are denoising steps. What
its text encoders said of the prompt stands in `text_states` and `text_pooled`.

"""
    return told + _table(("column", "of each", "type"), rows)


def _losses() -> str:
    rows: list[tuple[str, ...]] = []
    for name, loss in LOSSES.items():
        reads = [*(("tokens", "loss_mask") if loss.tokens else ()), *loss.reads]
        more = [*(["`old_log_probs` (as `old_log_probs:` says)"] if loss.ratio else [])]
        more += ["`ref_log_probs` with `kl`"] if loss.kl else []
        more += ["`rollout_log_probs` with a correction"] if loss.ratio else []
        rows.append((f"`{name}`", loss.head, ", ".join([_names(reads), *more]), _names(loss.keys)))
    told = """## Losses

`update.loss` of a trainer. Keys that only some losses read stand in the last column.

"""
    return told + _table(("loss", "head of the model", "reads", "keys of its own"), rows)


def _estimators() -> str:
    rows = [
        (
            f"`{name}`",
            _names(each.reads),
            _names(each.writes),
            each.normalize,
            ", ".join(f"`{key}` {value:g}" for key, value in each.keys.items()) or "–",
            "yes" if each.kl else "no",
        )
        for name, each in ESTIMATORS.items()
    ]
    told = """## Estimators

`estimator` of an estimator role. With `kl` it reads `old_log_probs` and `ref_log_probs` as well.

"""
    return told + _table(("estimator", "reads", "writes", "`normalize` by default", "keys and defaults", "`kl`"), rows)


def _functions() -> str:
    rows = [
        (f"`flowrl:{name}`", kind, _names(each.fields), _names(each.args), _names(each.optional_args))
        for kind, table in (("reward", BUILTIN_REWARDS), ("function", BUILTIN_FUNCTIONS))
        for name, each in table.items()
    ]
    told = "## Functions that ship with FlowRL\n\n`function: flowrl:NAME`; arguments stand under `args`.\n\n"
    return told + _table(("function", "kind of role", "reads", "arguments", "arguments that may be left out"), rows)


def _backends() -> str:
    rows = [
        (f"`{name}`", ", ".join(each.kinds), ", ".join(each.heads), ", ".join(f"`{axis}`" for axis in each.axes))
        for name, each in TRAITS.items()
    ]
    told = "## Backends\n\nWhat can be planned; the README says what of it runs.\n\n"
    return told + _table(("backend", "kinds of role", "heads", "axes of a layout"), rows)


def _devices() -> str:
    told = "## Devices\n\n`cluster.gpu`, and the last part of a shorthand such as `16xH100-80G`: "
    others = ", ".join(f"`{alias}` for `{name}`" for alias, name in ALIASES.items())
    return f"{told}{_names(DEVICE_CARDS)}. Other names are taken too: {others}.\n"


def _models() -> str:
    told = """## Models

`source` of a model is a folder with a `config.json`, or one of these hub ids, whose shapes ship with FlowRL:

"""
    return told + _table(("hub id",), ((f"`{name}`",) for name in CARDS))


PAGES: Mapping[str, Callable[[], str]] = {
    "README.md": readme,
    "docs/reference/flow.md": flow,
    "docs/reference/ops.md": ops,
    "docs/reference/presets.md": presets,
    "docs/errors/README.md": codes,
    "docs/status.md": status,
}


def stale() -> list[str]:
    """Names of pages that are not as they would be written now."""
    return [name for name, make in PAGES.items() if not is_current(ROOT / name, make())]


def is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not as written")
    if parser.parse_args().check:
        names = stale()
        sys.stdout.writelines(f"stale: {name} (python tools/pages.py writes it)\n" for name in names)
        return 1 if names else 0
    for name, make in PAGES.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
