"""Keys and values that are nearly what a package declares."""

import sys
from pathlib import Path

from flowrl.spec import load
from tests.spec.fake_package import install


def diagnostics():
    sys.path.insert(0, install(Path("site").resolve(), package="acme-near"))
    try:
        load("flow.yaml")
    finally:
        sys.path.pop(0)
    return ()
