"""Operations on the text, its bytes and the command line beside it: spoilt lines, odd characters, hostile sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from benchmarks.fuzzing.draft import ODD_TEXTS, TEMPLATES, Draft

ODD_CHARACTERS = (
    "\ufeff", "\u0085", "\u2028", "\u2029", "\u200b", "\u200d", "\u202e", "\u2066", "\ud800", "\udfff", "\x00", "\x07",
    "\x1b[31m", "\x7f", "\x80", "\t", "\r", "\r\n", "\n", "\u00a0", "\u3000", "\U0010ffff", "\uffff", "é", "e\u0301",
    "\U0001f468\u200d\U0001f469", "：", "－", "→", "'", '"', "{", "}", "[", "]", ",", "#", "&a ", "*a ",
    "!!python/none ",
    "!x ", "? ", "- ", ": ", "|\n", ">-\n", "%YAML 1.1\n", "---\n", "...\n", "<<: ", "{{", "}}", "{%", "\\",
)  # fmt: skip
LARGE = 10 << 20


def _lines(draft: Draft) -> list[str]:
    return draft.text.split("\n")


def _join(draft: Draft, lines: list[str]) -> None:
    draft.text = "\n".join(lines)


def _line(draft: Draft, lines: list[str]) -> int:
    return draft.random.randrange(len(lines))


def delete_lines(draft: Draft) -> None:
    lines = _lines(draft)
    at = _line(draft, lines)
    del lines[at : at + draft.random.choice((1, 1, 1, 2, 5))]
    _join(draft, lines or [""])


def double_line(draft: Draft) -> None:
    lines = _lines(draft)
    at = _line(draft, lines)
    lines[at:at] = [lines[at]] * draft.random.choice((1, 1, 2, 50))
    _join(draft, lines)


def swap_lines(draft: Draft) -> None:
    lines = _lines(draft)
    one, other = _line(draft, lines), _line(draft, lines)
    lines[one], lines[other] = lines[other], lines[one]
    _join(draft, lines)


def indent(draft: Draft) -> None:
    lines = _lines(draft)
    at = _line(draft, lines)
    shift = draft.random.choice((" ", "  ", "    ", "\t", None, "\u00a0"))
    lines[at] = lines[at][1:] if shift is None else shift + lines[at]
    _join(draft, lines)


def swap_sections(draft: Draft) -> None:
    parts = re.split(r"(?m)^(?=[a-z]\w*:)", draft.text)
    draft.random.shuffle(parts)
    draft.text = "".join(parts)


def swap_names(draft: Draft) -> None:
    """Two sections trade their keys."""
    names = re.findall(r"(?m)^([a-z]\w*):", draft.text)
    if len(set(names)) < 2:
        return
    one, other = draft.random.sample(sorted(set(names)), 2)
    trade = {one: other, other: one}
    draft.text = re.sub(rf"(?m)^({one}|{other}):", lambda found: f"{trade[found[1]]}:", draft.text)


def cut(draft: Draft) -> None:
    """A stretch of text away, or everything from a place on."""
    at = draft.random.randrange(len(draft.text) + 1)
    end = at + draft.random.choice((1, 2, 5, 20)) if draft.random.random() < 0.6 else len(draft.text)
    draft.text = draft.text[:at] + draft.text[end:]


def odd_character(draft: Draft) -> None:
    for _ in range(draft.random.choice((1, 1, 2, 8))):
        at = draft.random.randrange(len(draft.text) + 1)
        draft.text = draft.text[:at] + draft.random.choice(ODD_CHARACTERS) + draft.text[at:]


def odd_word(draft: Draft) -> None:
    """A word of the text by an odd value."""
    words = list(re.finditer(r"[\w./:-]+", draft.text))
    if words:
        word = draft.random.choice(words)
        new = draft.random.choice((*ODD_TEXTS, *TEMPLATES, "1e400", "-0", ".nan", "1" + "0" * 30, "9" * 5000))
        draft.text = draft.text[: word.start()] + new + draft.text[word.end() :]


def misspell(draft: Draft) -> None:
    words = list(re.finditer(r"\w{2,}", draft.text))
    if words:
        word = draft.random.choice(words)
        draft.text = draft.text[: word.start()] + draft.typo(word.group()) + draft.text[word.end() :]


def splice(draft: Draft) -> None:
    """The head of this flow and the tail of another."""
    one, other = _lines(draft), draft.other().text.split("\n")
    _join(draft, one[: _line(draft, one)] + other[_line(draft, other) :])


def anchors(draft: Draft) -> None:
    """Anchors, aliases and merge keys where values stand."""
    lines = _lines(draft)
    for _ in range(draft.random.choice((1, 2, 4))):
        at = _line(draft, lines)
        mark = draft.random.choice(("&a ", "*a", "*b", "&b ", "<<: *a", "<<: [*a, *b]", "<<: 1", "*a : 1"))
        lines[at] = re.sub(
            r"(:) ?(.*)$", lambda found, mark=mark: f": {mark}{found[2] if '&' in mark else ''}", lines[at]
        )
    _join(draft, lines)


def bomb(draft: Draft) -> None:
    """Aliases of aliases."""
    wide, deep = (
        draft.random.choice(((2, 12), (10, 3), (10, 9), (3, 30))),
        draft.random.choice(("list", "map", "merge")),
    )
    lines = ["a0: &a0 [1, 2]" if deep == "list" else "a0: &a0 {k: 1, l: 2}"]
    for level in range(1, wide[1]):
        below = [f"*a{level - 1}"] * wide[0]
        if deep == "list":
            body = f"[{', '.join(below)}]"
        elif deep == "map":
            body = f"{{{', '.join(f'k{i}: {alias}' for i, alias in enumerate(below))}}}"
        else:
            body = f"{{<<: [{', '.join(below)}], m{level}: *a{level - 1}}}"
        lines.append(f"a{level}: &a{level} {body}")
    indented = draft.random.random() < 0.5
    text = "\n".join(lines)
    draft.text += "\nvars:\n  " + text.replace("\n", "\n  ") if indented else f"\n{text}\n"
    if indented:
        draft.text += "\n"


def nest(draft: Draft) -> None:
    depth = draft.random.choice((10, 63, 64, 65, 200, 5000, 100_000))
    opened, closed = draft.random.choice((("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[", ""), ("{a: [", "")))
    key = draft.random.choice(("deep", "vars", "args", "roles", "edges", "data"))
    space = "\n  " if opened in ("- ", "? ") else " "
    draft.text += f"\n{key}:{space}{opened * depth}1{closed * depth}\n"


def large(draft: Draft) -> None:
    """Texts at and over the limit of size."""
    size = draft.random.choice((1 << 19, (1 << 20) - 2000, 1 << 20, LARGE))
    way = draft.random.randrange(6)
    if way == 0:
        draft.text += "\n# " + "x" * size
    elif way == 1:
        draft.text += "\nvars: {x: '" + "x" * size + "'}\n"
    elif way == 2:
        draft.text += "\n" * size
    elif way == 3:
        draft.text += "\nvars: [" + "1, " * (size // 3) + "1]\n"
    elif way == 4:
        draft.text += "\nvars:\n" + "".join(f"  k{i}: {i}\n" for i in range(size // 12))
    else:
        draft.text = "x" * size


def long_scalar(draft: Draft) -> None:
    size = draft.random.choice((1000, 5000, 90_000, 500_000))
    body = draft.random.choice(("a", "9", "{{ 1 }}", "a.", "a, ", "-> ", "é", " ", "'", "{{", "{%if 1%}", "\\n", "*"))
    text = (body * size)[:size]
    key = draft.random.choice(("name", "cluster", "use", "allow", "vars", "flowrl", "run", "note", text[:100_000]))
    quoted = f'"{text}"' if draft.random.random() < 0.5 else text
    draft.text += f"\n{key}: {quoted}\n"


def many_commas(draft: Draft) -> None:
    """An edge with many ends."""
    count = draft.random.choice((3, 50, 400, 3000))
    left = ", ".join(f"r{i}.score" for i in range(count))
    right = ", ".join(f"s{i}.estimate" for i in range(draft.random.choice((1, 50, count))))
    edge = draft.random.choice((f"{left} -> {right}", f"{left} => {right}", f"{left},,, <-> {right}", "," * count))
    _under(draft, "edges", f'- "{edge}"')


def many_roles(draft: Draft) -> None:
    """Thousands of roles, with edges or without, with near names."""
    count = draft.random.choice((20, 100, 300, 3000))
    kind = draft.random.choice(
        ("{kind: reward, function: 'rewards.py:score'}", "{}", "{kind: estimator, estimator: grpo}", "{knd: reward}",
         "{kind: reward, combine: {r0: 1.0}}", "{kind: filter, rule: zero_spread}", "{kind: scorer, model: policy}")
    )  # fmt: skip
    _under(draft, "roles", "\n  ".join(f"r{i}: {kind}" for i in range(count)))
    op = draft.random.choice(("score", "estimate", "log_probs", "nope"))
    ways = ("actor_infer.generate -> r{i}.{op}", "r{i}.{op} -> r{next}.{op}", "actor_train => r{i}", "")
    way = draft.random.choice(ways)
    if way:
        _under(draft, "edges", "\n  ".join(f"- {way.format(i=i, next=i + 1, op=op)}" for i in range(count)))


def many_entries(draft: Draft) -> None:
    """A section with very many entries."""
    section, entry = draft.random.choice(
        (("models", "m{i}: {{source: Qwen/Qwen2.5-0.5B}}"), ("data",
        "d{i}: {{source: d.jsonl, prompt: q, max_prompt_tokens: 9}}"),
         ("vars", "v{i}: '{{{{ v{next} }}}}'"), ("vars", "v{i}: '{{{{ v{before} }}}}{{{{ v{before} }}}}'"), ("assume",
         "a.b{i}: {{seconds: 1}}"),
         ("edges", "- a.score -> b{i}.score"), ("stages", "- {{name: s{i}, use: grpo}}"), ("allow", "- FR0{i}"),
         ("roles", "r{i}: 1"))
    )  # fmt: skip
    count = draft.random.choice((10, 300, 3000))
    _under(draft, section, "\n  ".join(entry.format(i=i, next=i + 1, before=i - 1) for i in range(count)))


def _under(draft: Draft, section: str, text: str) -> None:
    """`text` as first entries of the section, which is made if there is none in block style."""
    found = re.search(rf"(?m)^{section}:[ ]*(#.*)?\n(?P<indent> *)", draft.text)
    if found is None:
        draft.text += f"\n{section}:\n  {text}\n"
        return
    indent = found["indent"]
    body = text.replace("\n  ", f"\n{indent}")
    draft.text = f"{draft.text[: found.start('indent')]}{indent}{body}\n{draft.text[found.start('indent') :]}"


def flags(draft: Draft) -> None:
    """`--set` flags, good and bad."""
    paths = (
        "step.prompts", "roles.actor_train.optimizer.lr", "models.policy.source", "use", "edges", "stages.0.use",
        "name",
        "schedule.max_lag", "roles.actor_infer.generate.temperature", "data.train.source", "vars.x", "cluster.nodes",
        "stages.sft.run.steps", "assume.actor_infer.generate.response_tokens", "run", "a.b.c.d", "roles", "", ".",
        "a..b",
        "roles.actor_train.update", "placement.pools.x.gpus", "flowrl", "step", "include", "roles.nobody.model",
    )  # fmt: skip
    values = (
        "1", "0", "-1", "1e400", "10" * 20, "true", "", "null", "[1, 2]", "{a: 1}", "grpo", "{", "[", "*a", "&a 1",
        "!!x 1",
        "'", '"', "{{ x }}", "a: b", "- a", "\x00", "\ud800", "\n", "#",
        "x" * 50_000, "[" * 3000, "{a: " * 100, "!!binary x",
        "&a [*a]", "\t", "---", "1\n---\n2", "2", "512", "0.5",
    )  # fmt: skip
    for _ in range(draft.random.choice((1, 1, 2, 4))):
        path, value = draft.random.choice(paths), draft.random.choice(values)
        if draft.random.random() < 0.3:
            path = draft.typo(path)
        draft.sets.append(
            draft.random.choice((f"{path}={value}", f"{path}={value}", f"{path}={value}", path, f"={value}"))
        )


def shorthand(draft: Draft) -> None:
    """`--cluster`, good and bad."""
    good = "8xH100-80G"
    choices = (
        "16xH100-80G", "4x8xH100-80G", "0xH100-80G", "-1xH100-80G", "99999999999xH100-80G", "8xH10-80G", "local", "",
        "x",
        "flow.yaml", "nothing.yaml", "8xH100-80G+4xA100-80G", "8x" * 1000, "1e9xH100-80G", "/dev/zero.yaml",
        "\x00.yaml",
    )  # fmt: skip
    draft.cluster = draft.typo(good) if draft.random.random() < 0.4 else draft.random.choice(choices)


def includes(draft: Draft) -> None:
    """`include:` of files that loop, are odd, or are not there."""
    files: Mapping[str, bytes] = {
        "part.yaml": b"roles: {extra: {kind: reward, function: 'rewards.py:score'}}\n",
        "loop.yaml": b"include: [loop.yaml]\n",
        "one.yaml": b"include: [two.yaml]\n",
        "two.yaml": b"include: [one.yaml]\n",
        "back.yaml": b"include: [flow.yaml]\n",
        "twice.yaml": b"include: [part.yaml, part.yaml]\n",
        "bytes.yaml": bytes(range(256)),
        "list.yaml": b"- 1\n",
        "empty.yaml": b"",
        "deep.yaml": b"vars: " + b"[" * 5000,
        "use.yaml": b"use: grpo\nflowrl: 1\nname: part\n",
        "stages.yaml": b"stages: [{name: a, use: sft}]\n",
        "large.yaml": b"# " + b"x" * (2 << 20),
        "typo.yaml": b"rols: {}\nstep: {promts: 1}\n",
        "edges.yaml": b"edges:\n  - reward.score -> nobody.estimate\n  - {edge: a.b -> c.d, remove: true}\n",
    }
    doubled = {f"fan{i}.yaml": f"include: [fan{i + 1}.yaml, fan{i + 1}.yaml]\n".encode() for i in range(25)}
    doubled["fan25.yaml"] = b"vars: {x: 1}\n"
    odd = (
        "/dev/zero",
        "/dev/null",
        ".",
        "..",
        "",
        "missing.yaml",
        "\x00",
        "../" * 100 + "etc/passwd",
        "fan0.yaml",
        "a" * 5000,
    )
    chosen = draft.random.sample((*files, *odd), draft.random.choice((1, 1, 2, 3)))
    draft.files |= files
    if "fan0.yaml" in chosen:
        draft.files |= doubled
    value = draft.random.choice((str(chosen), str(chosen), chosen[0], "{a: b}", "[1]", "[[]]", "null"))
    value = value.replace("\x00", "\\0") if isinstance(value, str) else value
    draft.text = f"include: {value}\n{draft.text}"


def spoil_bytes(draft: Draft) -> None:
    data = bytearray(draft.bytes())
    for _ in range(draft.random.choice((1, 1, 3, 20))):
        at = draft.random.randrange(len(data) + 1)
        way = draft.random.randrange(3)
        junk = draft.random.randbytes(draft.random.choice((1, 1, 4, 64)))
        data[at : at + (0 if way == 0 else len(junk))] = junk if way < 2 else b""
    draft.data = bytes(data)


def truncate(draft: Draft) -> None:
    data = draft.bytes()
    draft.data = data[: draft.random.randrange(len(data) + 1)]


def encode(draft: Draft) -> None:
    data = draft.bytes()
    text = data.decode("utf-8", "replace")
    coded: Callable[[], bytes] = draft.random.choice(
        (lambda: text.encode("utf-16"), lambda: text.encode("utf-32"), lambda: text.encode("latin-1", "replace"),
         lambda: b"\xef\xbb\xbf" + data, lambda: b"\xff\xfe" + data, lambda: data.replace(b"\n", b"\r\n"),
         lambda: data.replace(b"\n", b"\r"), lambda: draft.random.randbytes(500), lambda: b"", lambda: b"\x00" * 1000,
         lambda: data.replace(b" ", b"\xc2\xa0"), lambda: data.replace(b"\n", "\u2028".encode()))
    )  # fmt: skip
    draft.data = coded()


TEXT_OPERATIONS: Mapping[str, Callable[[Draft], None]] = {
    f"text.{operation.__name__}": operation
    for operation in (
        delete_lines,
        double_line,
        swap_lines,
        indent,
        swap_sections,
        swap_names,
        cut,
        odd_character,
        odd_word,
        misspell,
        splice,
        anchors,
    )
}
HOSTILE_OPERATIONS: Mapping[str, Callable[[Draft], None]] = {
    f"size.{operation.__name__}": operation
    for operation in (bomb, nest, large, long_scalar, many_commas, many_roles, many_entries)
}
BESIDE_OPERATIONS: Mapping[str, Callable[[Draft], None]] = {
    f"beside.{operation.__name__}": operation for operation in (flags, shorthand, includes)
}
BYTE_OPERATIONS: Mapping[str, Callable[[Draft], None]] = {
    f"bytes.{operation.__name__}": operation for operation in (spoil_bytes, truncate, encode)
}
