"""Bugs that are planted in the product, each of which a profile has to catch."""
