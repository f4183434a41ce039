"""The shell of a partition replica."""
