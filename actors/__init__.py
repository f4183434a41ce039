"""The shells: Ray actors around the pure core, one asyncio endpoint each.

``*_server.py`` hold plain asyncio objects that run without Ray (tests do so); ``ray_actors.py`` turns them into Ray
actors. No decision lives here: events go into a machine of ``raylog.core``, effects come out and are carried out.
"""
