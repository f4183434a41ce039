"""One partition replica as a state machine: leader, follower, ISR, high watermark, epochs, truncation.

``replica.py`` is the machine, ``events.py`` its events and effects; the committed state is in ``core/partition.py``.
Run by ``raylog.actors.replica`` and by the simulator.
"""
