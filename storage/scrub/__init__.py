"""The scrub: reads the batches of a log again, slowly, to find damage before a reader does."""
