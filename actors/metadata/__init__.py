"""The replicated metadata log: the controller's side and the voters."""
