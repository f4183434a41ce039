"""What the chaos run observed, and whether that is allowed."""
