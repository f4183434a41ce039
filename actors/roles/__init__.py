"""What a leader replica does beside replication: roles that begin and end with a leadership, in its process."""
