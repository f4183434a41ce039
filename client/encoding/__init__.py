"""Arrow columns to the bodies of record batches, and the partitions of whole columns of keys."""
