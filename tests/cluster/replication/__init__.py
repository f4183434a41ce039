"""Real clusters: replication, damage, deletion."""
