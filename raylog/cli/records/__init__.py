"""Records of a topic on the command line: writing and reading them."""
