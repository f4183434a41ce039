"""Expired records, dead letters and redrives in the whole world: their clients, and what has to be true of them."""
