"""Sleeping partitions, which have no process (ADR 0042).

``changes.py``, ``queue.py``, ``shares.py`` and ``stop.py``: the controller's decisions, which partitions fall asleep
and which wake. ``machine.py`` and ``events.py``: the broker that answers in place of the leaders of those that sleep.
"""
