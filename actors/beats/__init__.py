"""The shared memory in which replicas show their broker that they run, and its table."""
