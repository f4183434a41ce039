"""Consumer groups as a state machine: members, rebalances and offsets of one ``__consumer_offsets`` partition.

``coordinator.py`` the machine; ``group.py`` one group of the classic protocol and ``rebalance.py`` its rounds;
``consumer`` the groups of the consumer protocol (KIP-848); ``committed`` the committed offsets; ``records.py`` the
records of the log; ``events.py`` events and effects. The client that leads a classic group uses
``client/group/assignors.py`` and ``client/group/embedded_protocol.py``. Run by ``raylog.actors.groups`` and by the
simulator.
"""
