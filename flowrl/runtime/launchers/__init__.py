"""Two launchers, one driver: `inline` in this process, `ray` in actors. contract.py is what the driver asks of them."""
