"""On-disk data: record batches, segments, indexes and the partition log. Imports nothing else of Raylog."""
