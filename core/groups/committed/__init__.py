"""Committed offsets of groups: committing, committing with a transaction, and resetting them. Pure."""
