"""Readers of ranges (Ray Data, Spark, columns) under faults: exact rows or an error, by seeds."""
