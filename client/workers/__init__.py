"""Worker pools: the records of one consumer, handled by many threads."""
