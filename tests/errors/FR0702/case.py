from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import loads


def diagnostics() -> tuple[Diagnostic, ...]:
    loads(b'{"name": "demo"}')
    return ()
