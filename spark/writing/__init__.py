"""Writes from Spark, batch and stream."""
