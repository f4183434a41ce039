"""Real clusters: metrics."""
