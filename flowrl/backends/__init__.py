"""What does the work of a role on its devices. Each folder mirrors the others; contract.py says what each must do."""
