"""Which replicas lead, follow and are in sync, and where new ones are placed. Pure."""
