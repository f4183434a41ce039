"""The world of the outbox: shipped relays on a real database in memory, and leaders on a virtual network."""
