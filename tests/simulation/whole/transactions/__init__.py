"""Transactions in the world of the whole cluster: their clients, what these know, and the claims about it."""
