"""Checkers of the rules of a partition, and their tests."""
