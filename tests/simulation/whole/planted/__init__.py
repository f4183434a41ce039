"""Bugs that are planted in the product for the simulation of the whole."""
