"""The machine below: descriptors, sockets, memory, identity of the host."""
