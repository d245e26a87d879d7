"""A cluster in a file of its own (`--cluster FILE`): the mapping that `cluster:` takes, with its spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath

from pydantic import ValidationError

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.spec.files import read_text
from flowrl.spec.flow import Origin, Path
from flowrl.spec.schema import ClusterDocument
from flowrl.spec.tree import MappingNode, origins, plain_value
from flowrl.spec.yaml_tree import read_yaml


@dataclass(frozen=True, slots=True)
class ClusterFile:
    document: ClusterDocument
    file: str
    origins: Mapping[Path, Origin]

    def span(self, *path: str) -> Span | None:
        """Span of the value at `path`, else of its nearest ancestor that has one."""
        for end in range(len(path), -1, -1):
            origin = self.origins.get(path[:end])
            if origin is not None and (origin.value or origin.key):
                return origin.value or origin.key
        return None


def load_cluster(path: str | FilePath) -> ClusterFile:
    """The cluster of a YAML file: the mapping itself, or a mapping whose only key is `cluster`.

    Raises FlowError (FR00, FR01).
    """
    text, file = read_text(path, "a YAML file with a cluster, or a shorthand such as 16xH100-80G"), str(path)
    root = read_yaml(text, file)
    inner = root.get("cluster") if isinstance(root, MappingNode) else None
    tree = inner if isinstance(inner, MappingNode) else root
    if not isinstance(tree, MappingNode) or not tree.entries:
        problem = "the document is empty" if root is None else "the document is not a mapping"
        raise FlowError(diagnose("FR0015", root.span if root else Span(file, 1, 1, 1, 2), problem=problem))
    try:
        document = ClusterDocument.model_validate(plain_value(tree))
    except ValidationError as error:
        from flowrl.spec.schema_errors import Context, schema_diagnostics

        raise FlowError(schema_diagnostics(error, Context(tree, ClusterDocument, {file: text}, {}))) from None
    return ClusterFile(document, file, dict(origins(tree)))
