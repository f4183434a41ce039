"""The host: descriptors, sockets, memory, identity."""
