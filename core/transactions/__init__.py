"""Transactions as a state machine: the transactional ids of one ``__transaction_state`` partition.

``coordinator.py`` the machine; ``rules.py`` what each request does to a transactional id; ``records.py`` the rows of
the log, with producer ids and epochs; ``states.py`` the legal moves; ``waiting.py`` markers, timeouts and producer ids
that are waited for; ``room.py`` limits; ``events.py`` events and effects. Run by ``raylog.actors.transactions`` and by
the simulator.
"""
