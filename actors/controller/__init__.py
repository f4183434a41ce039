"""The shell of the controller."""
