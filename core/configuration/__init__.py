"""Configuration keys: what there is, where a value comes from, and the page of them. Pure."""
