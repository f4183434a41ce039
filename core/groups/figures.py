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
    """A group; ``members`` and ``pending_offsets`` are numbers, the latter of offsets in open transactions."""

    group: str
    state: str
    members: int
    offsets: list[OffsetFigures]
    pending_offsets: int = 0
