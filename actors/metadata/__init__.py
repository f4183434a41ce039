"""The replicated metadata log: the controller's side (the proposer) and the voters."""
