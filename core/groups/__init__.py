"""Consumer groups as a state machine: members, rounds and offsets of one ``__consumer_offsets`` partition.

``coordinator.py`` the machine; ``group.py`` one group and ``rebalance.py`` its rounds; ``offsets.py`` the committed
offsets; ``records.py`` what is written to the log; ``events.py`` what can happen and what has to be done about it;
``assignors.py`` and ``protocol.py`` are for the client that leads a group. Run by ``raylog.actors.group_coordinator``
and by the simulator.
"""
