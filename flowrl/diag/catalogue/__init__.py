"""Every code and its words, one module per range (STYLE: FR00 files & YAML … FR99 internal)."""

from flowrl.diag.catalogue import (
    backends,
    backends_vllm,
    edges,
    engines,
    environments,
    files,
    graph,
    internal,
    judging,
    keys,
    layouts,
    meanings,
    models,
    names,
    numbers,
    numerics,
    objectives,
    packages,
    placement,
    plan_file,
    rates,
    refill,
    rewards,
    rows,
    run,
    run_ray,
    schedule,
    schema,
    sharding,
    sweep,
)
from flowrl.diag.catalogue.code import Code

CODES: dict[str, Code] = {
    code.id: code
    for module in (
        files,
        schema,
        packages,
        names,
        keys,
        layouts,
        sharding,
        engines,
        rewards,
        graph,
        rates,
        edges,
        meanings,
        models,
        placement,
        schedule,
        numerics,
        rows,
        objectives,
        plan_file,
        numbers,
        sweep,
        backends,
        backends_vllm,
        environments,
        judging,
        refill,
        run,
        run_ray,
        internal,
    )
    for code in module.CODES
}

__all__ = ["CODES", "Code"]
