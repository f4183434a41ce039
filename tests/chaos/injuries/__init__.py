"""What the chaos run does to a cluster."""
