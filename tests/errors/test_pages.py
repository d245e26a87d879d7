"""What the page of a code shows is what is printed: its frame is the first one of a golden of that code."""

from __future__ import annotations

import pytest

from flowrl.diag.catalogue import CODES
from flowrl.diag.pages import page
from tests.errors.cases import HERE

OWN = sorted(code for code in CODES if code[:4] in ("FR00", "FR01"))


def first_frame(text: str) -> str:
    lines = text.split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if "= see:" not in line)


@pytest.mark.parametrize("code", OWN)
def test_frame_of_the_page_is_printed(code: str) -> None:
    text = page(code)
    assert text is not None
    goldens = [first_frame((case / "expected.txt").read_text(encoding="utf-8")) for case in HERE.glob(f"{code}*")]
    indented = ["\n".join(f"    {line}".rstrip() for line in golden.splitlines()) for golden in goldens]
    assert any(golden in text for golden in indented)
