"""The log cleaner alone: how fast it is, how much memory it takes, and what it leaves of a log."""
