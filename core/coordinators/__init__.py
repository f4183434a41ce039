"""What all owners of a log have in common: rows that wait for it, idleness, events, the hash of their keys. Pure."""
