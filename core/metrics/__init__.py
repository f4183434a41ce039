"""Figures about a running cluster as plain values: histograms, counters that never go back, Prometheus text. Pure."""
