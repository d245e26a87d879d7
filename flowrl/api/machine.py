"""Which cluster a plan is for: the flag `--cluster` (a shorthand, a file or `local`), else what the flow says."""

from __future__ import annotations

from flowrl.compiler.lower.cluster import lower_cluster, lower_stage_cluster
from flowrl.diag.span import Span
from flowrl.machine.cluster import Cluster
from flowrl.spec.cluster_file import load_cluster
from flowrl.spec.flow import FlowSpec

CLUSTER_FILE_SUFFIXES = (".yaml", ".yml")


def cluster_of(spec: FlowSpec, flag: str | Cluster | None) -> Cluster:
    """The cluster of all stages; one that is given as a value is as it is. Raises FlowError (FR00, FR01, FR0510 to
    FR0512)."""
    if isinstance(flag, Cluster):
        return flag
    if flag is None:
        return lower_stage_cluster(spec, 0)
    if not flag.endswith(CLUSTER_FILE_SUFFIXES):
        return lower_cluster(flag, span_of=lambda *_: Span("--cluster", 1, 1, 1, len(flag) + 1))
    file = load_cluster(flag)
    return lower_cluster(file.document, name=flag, span_of=file.span)
