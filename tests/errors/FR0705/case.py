from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import loads


def diagnostics() -> tuple[Diagnostic, ...]:
    loads(b" " * (10 * 2**20 + 1))
    return ()
