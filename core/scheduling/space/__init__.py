"""Space of the log that is given back: how much of it is needed, and what is appended once more for that."""
