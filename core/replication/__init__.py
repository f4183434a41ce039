"""One partition replica as a state machine: leader, follower, ISR, high watermark, epochs, truncation.

``state.py`` the controller's word about a partition; ``events.py`` what can happen and what has to be done about it;
``replica.py`` the machine. Run by ``raylog.actors.replica`` and by the simulator.
"""
