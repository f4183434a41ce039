"""Metrics for operators: counters in each process, and one HTTP page per node."""
