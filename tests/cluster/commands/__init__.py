"""Real clusters: the command line, examples, documents."""
