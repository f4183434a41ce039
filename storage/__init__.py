"""Bytes on disk: record batches, segments, indexes and the partition log. Imports nothing else of Raylog."""
