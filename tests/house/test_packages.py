"""What is put into a wheel and a source distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.house.tree import PACKAGE, ROOT

DATA_SUFFIXES = (".toml", ".yaml", ".json", ".md", ".typed")


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.iterdir())


def test_wheel_holds_the_package_its_data_and_the_error_pages(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
        entry_points = next(wheel.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    kept = [p for p in PACKAGE.rglob("*") if p.suffix in (".py", *DATA_SUFFIXES) and "__pycache__" not in p.parts]
    assert {f"flowrl/{p.relative_to(PACKAGE)}" for p in kept} <= names
    pages = {f"flowrl/diag/errors/{p.name}" for p in (ROOT / "docs" / "errors").glob("*.md")}
    assert pages <= names
    assert "flowrl = flowrl.cli.main:main" in entry_points
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"flowrl"}


def test_source_distribution_holds_the_licence_and_what_the_checks_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile", "tools/check.py", "docs/errors/FR9901.md"} <= names
    assert "examples/quickstart.yaml" in names
