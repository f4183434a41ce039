"""Laws of the transaction coordinator's machine."""
