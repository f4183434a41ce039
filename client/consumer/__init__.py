"""The consumer: engine, assignment, fetcher, positions."""
