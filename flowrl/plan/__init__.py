"""The plan file: schema, canonical io, digests. What a worker needs to read, and nothing more."""
