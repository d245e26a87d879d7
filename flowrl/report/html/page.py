"""A plan as one HTML file: everything in it, nothing fetched, opened from a disk.

The script (web/ in the repository, built into page.js) draws a View; a reader without scripts gets the plan as text.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

import jinja2
import msgspec

from flowrl import __version__
from flowrl.report.view import View

_FILES = "flowrl.report.html"


def render_page(view: View, text: str) -> str:
    """The page. `text`: the plan as text, for readers without scripts."""
    return _template().render(
        title=escape(f"{view.name} · flowrl plan"),
        version=__version__,
        style=_read("page.css"),
        script=_read("page.js"),
        view=_embedded(view),
        text=text,
    )


def _embedded(view: View) -> str:
    """JSON that may stand within a script element: no part of it ends the element or begins a comment."""
    return msgspec.json.encode(view).decode().replace("<", "\\u003c")


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined).from_string(_read("page.html.j2"))


@cache
def _read(name: str) -> str:
    return files(_FILES).joinpath(name).read_text(encoding="utf-8")
