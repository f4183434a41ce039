"""Producer, Consumer, Admin and their asyncio twins: everything a program needs to speak to a Raylog cluster.

Imports neither Ray nor any actor: with ``bootstrap="host:port"`` a service without Ray can produce and consume.
"""
