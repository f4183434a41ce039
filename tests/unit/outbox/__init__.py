"""The outbox without a cluster."""
