"""Starting and ending a cluster, without Ray."""
