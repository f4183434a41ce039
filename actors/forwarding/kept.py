"""What the keeper stores under one name. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from raylog.actors.roles.host import RoleHost


@dataclass(frozen=True, slots=True)
class Kept:
    """The data, and the epoch of the owner that stored it."""

    owner_epoch: int
    data: bytes = field(repr=False)


class Keeper(Protocol):
    """What redrives need from the role that stores them."""

    host: RoleHost
    kept: dict[str, Kept]

    async def save(self, name: str, kept: Kept | None) -> None:
        """Store something under a name, or delete it (None)."""

    async def save_surely(self, name: str, kept: Kept | None) -> None:
        """The same, repeated until it is stored."""
