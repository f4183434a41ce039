"""Transactions as a state machine: the transactional ids of one ``__transaction_state`` partition.

``coordinator.py`` the machine; ``rules.py`` what each request does to a transactional id; ``records.py`` the records of
the log; ``states.py`` the legal moves; ``identity.py`` producer ids and epochs; ``waiting.py`` requests that wait for a
transaction to end; ``timeouts.py`` and ``ending.py`` what is due, and what is still to be ended; ``events.py`` events
and effects. Run by ``raylog.actors.transactions`` and by the simulator.
"""
