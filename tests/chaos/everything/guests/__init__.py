"""The clients: one module for each feature."""
