from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import loads


def diagnostics() -> tuple[Diagnostic, ...]:
    loads(b'{"flowrl_plan": 1, "name": 3}')
    return ()
