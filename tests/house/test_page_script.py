"""The script of the page is the one that web/ builds: its first line has the digest of the sources."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_kept_script_is_built_from_the_sources_beside_it() -> None:
    web = ROOT / "web"
    digest = hashlib.sha256()
    for file in [web / "package-lock.json", *sorted((web / "src").iterdir())]:
        digest.update(file.read_bytes())
    first = (ROOT / "flowrl" / "report" / "html" / "page.js").read_text(encoding="utf-8").partition("\n")[0]
    assert digest.hexdigest() in first, "run `npm ci && npm run build` in web/"
