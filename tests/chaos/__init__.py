"""Chaos: a real cluster under load, faults from outside, and a checker of what the clients saw. See ``__main__``."""
