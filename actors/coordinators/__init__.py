"""What the shells of all kinds of coordinators have in common: their life, their log, their runner."""
