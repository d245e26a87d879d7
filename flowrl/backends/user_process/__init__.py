"""User functions in a process of their own, with limits: messages, child, tree of processes, process."""
