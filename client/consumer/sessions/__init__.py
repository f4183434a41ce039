"""A consumer in its group: its session in either protocol of groups, and how it hands partitions over."""
