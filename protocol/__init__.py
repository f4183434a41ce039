"""Every wire method once: its request, its reply, its server, the roles that may call it, its first feature level.

One page for each kind of endpoint. Shells, clients, the fuzz test, the permissions and the table in
``docs/protocol.md`` are made from these pages. Messages travel as msgpack lists inside the frames of ``raylog.rpc``.
"""
