"""Forwarders: each sends records of one partition on to other partitions, each record once. Pure."""
