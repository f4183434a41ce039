"""Moving partitions between brokers: requests, execution, and healing after a lost broker."""
