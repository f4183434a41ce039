"""The shell of a broker: its data directory and the supervisor of its replicas."""
