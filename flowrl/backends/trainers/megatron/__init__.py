"""Training and scoring with Megatron Core: a model cut over tensor, pipeline and data parallel ranks of a role."""
