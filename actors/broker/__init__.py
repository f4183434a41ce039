"""The shell of a broker: its data directory, its copy of the metadata, and the supervisor of its replicas."""
