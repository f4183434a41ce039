"""What the examples show on the terminal."""
