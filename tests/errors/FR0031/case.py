"""How many devices there are is known when the cluster is made."""

from flowrl import api


def diagnostics():
    return api.check("flow.yaml").diagnostics
