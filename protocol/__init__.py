"""Every wire method once: its request, its reply, who serves it, who may call it and since which feature level.

Shells, clients, the fuzz test, the permissions and the table in ``docs/protocol.md`` are made from these pages.
"""
