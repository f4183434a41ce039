"""What the keeper stores under one name. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kept:
    """The data, and the epoch of the owner that stored it."""

    owner_epoch: int
    data: bytes = field(repr=False)
