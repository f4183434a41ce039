"""The shell of a transaction coordinator."""
