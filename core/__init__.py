"""The pure core: state machines without Ray, sockets, files, clocks or threads.

Each machine has one door, ``step(event)``, which changes state and returns an :class:`~raylog.core.outbox.Outbox` of
effects. Actors (``raylog.actors``) and the simulator (``tests/simulation``) are the two shells that run them.
"""
