"""Transactions of a producer: their state, their coordinator, and the calls of both producers."""
