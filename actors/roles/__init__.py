"""Roles: tasks of a leader beside replication, in its process. They begin and end with a leadership."""
