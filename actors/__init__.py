"""The shells: Ray actors around the pure core, one asyncio endpoint each.

The ``server.py`` modules hold plain asyncio objects, which run without Ray in tests; ``processes/ray_actors.py`` turns
them into Ray actors. Shells decide nothing: they feed events to a state machine of ``raylog.core`` and carry out its
effects.
"""
