"""Training and scoring with FSDP2: one model sharded over the ranks of a role, or whole on a single rank."""
