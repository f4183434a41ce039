"""Forwarders: they send expired records to dead-letter topics, and dead letters onward; run by leader roles."""
