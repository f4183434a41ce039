"""Metrics for operators: counters in each process, one page per node, machine-readable logs."""
