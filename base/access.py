"""What a peer may call. Pure."""

from enum import IntEnum


class Role(IntEnum):
    """A peer's role; each includes the roles below it."""

    TOKEN = 1
    """Has a token: may do what is granted by it, until it expires."""
    CLIENT = 2
    CLUSTER = 3
