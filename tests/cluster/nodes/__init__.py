"""Real clusters of several Ray nodes."""
