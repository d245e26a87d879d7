from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import loads


def diagnostics() -> tuple[Diagnostic, ...]:
    loads(b'{\n  "flowrl_plan": 99\n}')
    return ()
