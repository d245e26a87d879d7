"""Plan and Trace → text, JSON. Imports nothing that runs."""
