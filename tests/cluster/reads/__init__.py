"""Real clusters: the ways of reading."""
