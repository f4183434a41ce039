"""The faults that the chaos run injects."""
