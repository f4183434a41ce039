"""The transactions of a partition: which are open, and which were aborted."""
