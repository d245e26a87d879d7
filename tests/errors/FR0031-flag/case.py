"""The same of the flag `--cluster`."""

from flowrl import api


def diagnostics():
    return api.check("flow.yaml", cluster="99999x8xH100-80G").diagnostics
