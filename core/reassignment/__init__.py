"""Moving partitions between brokers: what was requested, how it proceeds, and healing after a lost broker."""
