"""The runtime of whatever owns a log of rows, and its two hosts: an actor, or a role of a partition's leader."""
