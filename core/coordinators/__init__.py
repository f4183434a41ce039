"""What all kinds of coordinators have in common: rows that wait for the log, idleness, events. Pure."""
