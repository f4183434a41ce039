"""The world of controllers on their replicated log."""
