"""Properties of the outbox's plans."""
