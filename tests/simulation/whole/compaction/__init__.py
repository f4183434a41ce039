"""Compacted topics in the whole world: their clients, and what has to be left (profile `whole-compaction`)."""
