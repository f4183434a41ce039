"""A failing seed with as little in it as still fails, and its story as a person can follow it."""
