"""All methods in one place, for tests and for docs/protocol.md. Pure."""
