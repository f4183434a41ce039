"""The administrator's client and what it plans by itself."""
