"""The conductor: check, plan, run, and Flow's verbs."""
