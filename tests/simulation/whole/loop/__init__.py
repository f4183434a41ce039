"""One process that runs many: virtual time, simulated processes, threads and network."""
