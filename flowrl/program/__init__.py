"""The program: instruction streams, channels, and the checker that proves them deadlock-free."""
