"""Forwarders: what sends the records of one partition on to other partitions, each once. Pure."""
