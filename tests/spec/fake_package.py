"""A distribution that is not installed: a *.dist-info folder and a module, put first on sys.path."""

from __future__ import annotations

from pathlib import Path

KEYS = """
KEYS = {
    "generate": {
        "beams": {"type": "int", "unit": "beams", "default": 1, "doc": "Beams kept at each token."},
        "draft": {"type": "str", "default": None, "doc": "Folder of the draft model."},
    },
    "update": {"zeal": {"type": "float", "unit": "", "default": 0.5, "doc": "Factor of the step."}},
    "engine": {
        "policy": {"type": ["fcfs", "priority"], "default": "fcfs", "doc": "Order of requests."},
        "ports": {"type": "list[int]", "default": None, "doc": "Ports of the servers."},
    },
}
"""


def install(folder: Path, text: str = KEYS, backend: str = "acme", package: str = "acme-flowrl") -> str:
    """Write the distribution into `folder`, which then is a place of sys.path; gives the folder as text."""
    module = package.replace("-", "_")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}_keys.py").write_text(text, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[flowrl.keys]\n{backend} = {module}_keys:KEYS\n", encoding="utf-8")
    return str(folder)
