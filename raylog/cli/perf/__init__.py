"""`raylog perf`: makes load in this process, and measures it."""
