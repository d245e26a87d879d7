from flowrl.api.explain import open_number
from flowrl.diag.diagnostic import Diagnostic
from tests.explain.plans import small


def diagnostics() -> tuple[Diagnostic, ...]:
    open_number(small(), "nothing.like.it", "ppo.yaml")
    return ()
