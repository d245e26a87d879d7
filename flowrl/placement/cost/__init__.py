"""What memory and time are made from: a placed role, its work, its rates, and ledger lines."""
