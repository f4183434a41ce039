"""How many events a relay brings from PostgreSQL into a topic."""
