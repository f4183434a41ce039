"""Real clusters: the controller, its voters, topics."""
