"""What group and transaction coordinators have in common: rows that wait for the log, idleness, events. Pure."""
