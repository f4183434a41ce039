"""The figures of the groups of one coordinator, as the metrics get them."""

from __future__ import annotations

from typing import NamedTuple


class OffsetFigures(NamedTuple):
    """A committed offset."""

    topic_id: str
    topic: str
    partition: int
    offset: int


class GroupFigures(NamedTuple):
    """A group; ``members`` counts them, ``pending_offsets`` what open transactions are about to commit."""

    group: str
    state: str
    members: int
    offsets: list[OffsetFigures]
    pending_offsets: int = 0
