"""Partitions that sleep: the controller's decisions (``changes.py``), and a broker in the place of their leaders."""
