"""Freeing space in the log: how much of it is needed, and which records are copied so that old parts can be deleted."""
