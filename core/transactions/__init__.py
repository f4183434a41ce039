"""Transactions as a state machine: the transactional ids of one ``__transaction_state`` partition.

``coordinator.py`` the machine; ``rules.py`` what each request does to a transactional id; ``records.py`` the records of
the log; ``states.py`` the legal moves; ``identity.py`` producer ids and epochs; ``waiting.py`` requests that wait for a
transaction to end; ``timeouts.py`` deadlines of open transactions; ``ending.py`` participants without their marker;
``producer_ids.py`` unused producer ids; ``room.py`` limits; ``events.py`` events and effects. Run by
``raylog.actors.transactions`` and by the simulator.
"""
