"""Forwarders: records that expire, and dead letters that are sent on; run by leader roles."""
