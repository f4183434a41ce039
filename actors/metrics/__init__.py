"""What a cluster tells its operators: counters in each process, a page a node, logs that machines can read."""
