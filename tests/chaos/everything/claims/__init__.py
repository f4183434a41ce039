"""What is claimed of each feature, judged from a history alone. Pure."""
