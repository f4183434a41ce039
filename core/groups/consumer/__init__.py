"""Groups of the consumer protocol (KIP-848): the coordinator assigns, members follow with their heartbeats.

``groups.py`` all groups of a coordinator; ``group.py`` one group; ``heartbeats.py`` what a member's heartbeat does, its
way to its target, and which member may commit; ``assignors.py`` the targets; ``records.py`` the rows of the log. A part
of the machine in ``core/groups/coordinator.py``.
"""
