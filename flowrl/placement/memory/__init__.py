"""Peak memory per device and phase, as ledger lines."""
