"""What the chaos run saw, and whether that is allowed."""
