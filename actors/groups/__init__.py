"""The shell of a group coordinator."""
