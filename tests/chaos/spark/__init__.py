"""A streaming query that copies a topic exactly once, while what it runs on is killed. Called by the command."""
