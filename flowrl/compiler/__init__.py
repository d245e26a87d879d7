"""Flow → Graph (lower/), Graph → Graph (passes/), Graph + Placement → Program (emit/)."""
