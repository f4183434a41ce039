"""Groups of the consumer protocol (KIP-848): the coordinator assigns, members follow with their heartbeats.

``groups.py`` all groups of a coordinator; ``group.py`` one group; ``heartbeats.py`` what a member's heartbeat does;
``reconcile.py`` a member's way to its target assignment; ``assignors.py`` the targets; ``commits.py`` which member may
commit; ``records.py`` the records of the log. A part of the machine in ``core/groups/coordinator.py``.
"""
