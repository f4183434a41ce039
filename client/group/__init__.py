"""Consumer groups on the client's side: membership, assignors, committed offsets."""
