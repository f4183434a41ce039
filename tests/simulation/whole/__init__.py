"""One world of all parts: the shipped servers and clients on a virtual clock, network and set of processes."""
