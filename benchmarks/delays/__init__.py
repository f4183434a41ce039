"""Delayed records: how late they come at a rate, how fast a burst leaves, and what pending ones cost."""
