"""`raylog perf`: load from this process, measured."""
