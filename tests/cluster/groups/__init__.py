"""Real clusters: group coordinators."""
