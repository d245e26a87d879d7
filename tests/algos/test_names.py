import subprocess
import sys

from flowrl.algos import names
from flowrl.algos.aggregate import AGGREGATES
from flowrl.algos.corrections import CORRECTIONS
from flowrl.algos.estimators import ESTIMATORS
from flowrl.algos.kl import KL
from flowrl.algos.losses import LOSSES
from flowrl.graph import signatures


def test_names_are_those_of_the_functions() -> None:
    assert names.implemented() == {
        "loss": frozenset(LOSSES),
        "estimator": frozenset(ESTIMATORS),
        "correction": frozenset(CORRECTIONS),
        "aggregate": frozenset(AGGREGATES),
        "kl": frozenset(KL),
    }


def test_every_name_is_of_the_language() -> None:
    assert set(signatures.LOSSES) >= names.LOSSES
    assert set(signatures.ESTIMATORS) >= names.ESTIMATORS


def test_asking_needs_no_torch() -> None:
    code = "import sys, flowrl.algos.names as n; assert n.implemented(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
