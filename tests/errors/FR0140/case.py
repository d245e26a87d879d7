"""A package whose declaration has a type that no key has."""

import sys
from pathlib import Path

from flowrl.spec import load
from tests.spec.fake_package import install

KEYS = 'KEYS = {"update": {"zeal": {"type": "number", "default": 0.5, "doc": "Factor of the step."}}}\n'


def diagnostics():
    sys.path.insert(0, install(Path("site-bad").resolve(), KEYS, package="acme-bad"))
    try:
        load("flow.yaml")
    finally:
        sys.path.pop(0)
    return ()
