"""The executor's state machine, the virtual clock that simulates, the trace that both clocks write."""
