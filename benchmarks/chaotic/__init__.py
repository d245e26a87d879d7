"""What benchmarks/chaos.py is made of: scenarios, strikes, and what a struck run is compared by."""
