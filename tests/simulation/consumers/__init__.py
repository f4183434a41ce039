"""The world of the consumer protocol: a coordinator on its log, members, and a wire between them that is not kind."""
