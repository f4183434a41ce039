"""Real clusters: permissions, TLS, malformed requests."""
