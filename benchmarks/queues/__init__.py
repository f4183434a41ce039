"""Work queues: what a client library does to take messages and acknowledge them, and the loads that measure it."""
