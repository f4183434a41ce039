"""A day in the life of services outside Ray, beside a cluster to which everything happens."""
