"""Which roles a leader has, by its topic. The only place that names the kinds of roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raylog.actors.roles.role import Role

KINDS: Final[Sequence[type[Role]]] = ()
"""Every kind of role."""


def roles_of(topic: str) -> tuple[type[Role], ...]:
    """Return the roles that begin with each leadership of a partition of this topic."""
    return ()
