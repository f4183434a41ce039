"""Bugs planted in the product; a profile must catch each of them."""
