"""Delayed records in the whole world: their clients, and what has to be true of them."""
