"""Producer, Consumer, Admin and their asyncio twins: the public interface to a Raylog cluster.

Imports neither Ray nor any actor: with ``bootstrap="host:port"`` a service without Ray can produce and consume.
"""
