"""Starting, stopping and finding a cluster."""
