"""Laws of the assignors and of the group coordinator machine."""
