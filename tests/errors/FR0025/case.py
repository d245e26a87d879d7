"""A second `init` into the same folder."""

from flowrl import api


def diagnostics():
    api.init("grpo", "job")
    api.init("ppo", "job")
