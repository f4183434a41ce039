"""Dozing replicas in a world: what the operating system does for them, the faults that strike them, the claims."""
