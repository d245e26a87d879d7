"""User functions read by their syntax tree: parameters, faults, and that nothing is run."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from flowrl.compiler.lower.user_functions import Signature, check_call, inputs_of, is_function, signature_of
from flowrl.diag.diagnostic import Diagnostic


def _read(folder: Path, text: str, name: str = "f") -> Signature | Diagnostic:
    (folder / "f.py").write_text(text, encoding="utf-8")
    return signature_of(f"f.py:{name}", str(folder), None)


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, b=1, *, c, d=2): ...",
        "async def f(response, answer): ...",
        "def f(*, a=1, b): ...",
        "def f(a, *rest, **kwargs): ...",
        "def f(): ...",
        "def f(a: list[str] = [], *, b: int = 0) -> list[float]: ...",
    ],
)
def test_parameters_are_those_that_python_sees(tmp_path: Path, text: str) -> None:
    found = _read(tmp_path, text)
    assert isinstance(found, Signature)
    space: dict[str, object] = {}
    exec(text, space)  # noqa: S102
    named = [
        p
        for p in inspect.signature(space["f"]).parameters.values()  # type: ignore[arg-type]
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    assert found.required == tuple(p.name for p in named if p.default is p.empty)
    assert set(found.optional) == {p.name for p in named if p.default is not p.empty}
    assert found.takes_any == ("**kwargs" in text)


def test_the_file_is_never_run(tmp_path: Path) -> None:
    text = "import nothing_of_this_name\nraise SystemExit(1)\ndef f(response): ...\n"
    assert _read(tmp_path, text) == Signature(required=("response",), text="def f(response)")


def test_the_last_definition_counts_also_within_if_and_try(tmp_path: Path) -> None:
    text = "def f(a): ...\ntry:\n    import x\nexcept ImportError:\n    def f(b): ...\n"
    found = _read(tmp_path, text)
    assert isinstance(found, Signature)
    assert found.required == ("b",)


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("def g(response): ...", "FR0211", "has no function `f`"),
        ("def f(response:", "FR0212", "line 1"),
        ("\0", "FR0212", "null bytes"),
        ("def f(*rows): ...", "FR0213", "takes `*rows` only"),
        ("def f(response, /, answer): ...", "FR0213", "by position only"),
        ("from other import f", "FR0213", "an import"),
        ("f = lambda response: response", "FR0213", "an assignment"),
        ("class f: ...", "FR0213", "a class"),
        ("class A:\n    def f(self): ...", "FR0211", "has no function"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, code: str, told: str) -> None:
    found = _read(tmp_path, text)
    assert isinstance(found, Diagnostic)
    assert found.code == code
    assert told in " ".join((*found.notes, *(label.text for label in found.labels)))


def test_a_file_that_is_no_text_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_bytes(b"\xff\xfe\x00")
    found = signature_of("f.py:f", str(tmp_path), None)
    assert isinstance(found, Diagnostic)
    assert found.code == "FR0212"


def test_near_names_of_functions_and_files(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def gsm8k(response): ...\ndef _hidden(): ...\n")
    found = signature_of("f.py:gsm8", str(tmp_path), None)
    assert isinstance(found, Diagnostic)
    assert found.helps[0].text == "a function with a near name exists: `f.py:gsm8k`"
    for name in ("missing.py:f", "f:gsm8k", "gsm8k", ".:f"):
        gone = signature_of(name, str(tmp_path), None)
        assert isinstance(gone, Diagnostic)
        assert gone.code == "FR0210"


def test_args_are_no_inputs() -> None:
    signature = Signature(required=("response", "answer", "weight"), optional=("style", "scale"))
    assert inputs_of(signature, {"weight": 1, "scale": 2}, "f", None) == (("response", "answer"), ("style",))
    wrong = inputs_of(signature, {"weigth": 1}, "f", None)
    assert isinstance(wrong, Diagnostic)
    assert (wrong.code, wrong.helps[0].text) == ("FR0214", "a parameter with a near name exists: `weight`")
    assert inputs_of(Signature(("response",), takes_any=True), {"other": 1}, "f", None) == (("response",), ())


def test_a_data_source_is_called_with_its_args_alone() -> None:
    signature = Signature(required=("seed", "size"), optional=("hard",))
    assert check_call(signature, {"seed": 0, "size": 1}, "rows", None) is None
    missing = check_call(signature, {"seed": 0}, "rows", None)
    assert missing is not None
    assert (missing.code, missing.helps[0].text) == ("FR0214", "give `size` in `args:`")


def test_functions_that_ship_with_flowrl() -> None:
    found = signature_of("flowrl:overlong", ".", None)
    assert isinstance(found, Signature)
    assert inputs_of(found, {"max_tokens": 8, "buffer_tokens": 4}, "overlong", None) == (("loss_mask",), ("penalty",))
    missing = inputs_of(found, {"max_tokens": 8}, "overlong", None)
    assert isinstance(missing, Diagnostic)
    assert missing.code == "FR0214"
    unknown = signature_of("flowrl:overlnog", ".", None)
    assert isinstance(unknown, Diagnostic)
    assert unknown.code == "FR0211"


def test_signatures_of_built_in_functions_are_their_own() -> None:
    """Against the functions themselves, which need no torch."""
    from flowrl.backends.rewards import builtin
    from flowrl.graph.signatures import BUILTIN_REWARDS

    for name, declared in BUILTIN_REWARDS.items():
        parameters = inspect.signature(getattr(builtin, name)).parameters
        assert tuple(parameters) == (*declared.fields, *declared.args, *declared.optional_args)


def test_what_names_a_function() -> None:
    assert is_function("rows.py:problems")
    assert is_function("folder/rows.py:problems")
    assert not is_function("rows.jsonl")
    assert not is_function("C:/rows.jsonl")
