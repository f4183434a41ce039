"""Queue mode: a partition read by many workers, record by record (share groups, KIP-932), as pure state machines."""
