"""The shared memory in which replicas write heartbeats for their broker, and the layout of its table."""
