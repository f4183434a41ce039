"""How a client finds and reaches a cluster: discovery, connections, metadata, retries."""
