"""The world of the metadata log: voters and the controllers that write through them."""
