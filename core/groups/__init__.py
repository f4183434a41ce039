"""Consumer groups as a state machine: members, rebalances and offsets of one ``__consumer_offsets`` partition.

``coordinator.py`` the machine; ``events.py`` events and effects; ``offsets.py`` the committed offsets, ``pending.py``
those in open transactions; ``records.py`` the rows of the log.

Classic protocol: ``group.py`` one group and ``rebalance.py`` its rounds. The client that leads such a group uses
``client/group/assignors.py`` and ``client/group/embedded_protocol.py``.

Consumer protocol (KIP-848): the coordinator assigns, members follow with their heartbeats. ``consumer_groups.py`` all
its groups of a coordinator; ``consumer_group.py`` one group; ``heartbeats.py`` what a member's heartbeat does, its way
to its target, and which member may commit; ``assignors.py`` the targets; ``consumer_records.py`` the rows of the log.

Run by ``raylog.actors.groups`` and by the simulator.
"""
