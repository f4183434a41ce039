"""Real clusters: how processes are made."""
