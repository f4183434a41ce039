"""Configuration keys: what there is, where a value comes from, and settings as values. Pure."""
