"""Loading knows no ops: the gate is looked at when the stage's graph is made."""

from flowrl import api


def diagnostics():
    return api.check("flow.yaml").diagnostics
