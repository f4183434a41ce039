"""The producer's loop side: what is sent when, and what becomes of it."""
