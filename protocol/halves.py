"""Methods of half messages: the leader of their partition of ``__scheduled`` answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raylog.protocol.message import Int32, Int64, Message, Names, Rows
from raylog.protocol.method import CLIENT, TOKEN, AnyMethod, Method, TokenScope


class DecideHalvesRequest(Message, frozen=True):
    """Commit or roll back half messages of a group, or say that a check gave no decision; answered when committed.

    ``verdicts``: ``COMMIT``, ``ROLLBACK`` or ``UNKNOWN`` for each of ``txids``. ``checks``: of an ``UNKNOWN``, the
    number of checks that the question stated; a repetition of it does not count.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group: str
    txids: Names
    verdicts: Names
    checks: Rows[Int64]


class DecideHalvesReply(Message, frozen=True):
    """State of each now: ``COMMITTED``, ``ROLLED_BACK``, ``HELD`` or ``NOT_FOUND``; and its number of records."""

    standings: Sequence[str]
    records: Sequence[Int64]


class PollHalvesRequest(Message, frozen=True):
    """Query for half messages of a group that are to be checked; waits for the first one.

    Each is given to no other member for ``lease_ms``, or until it is answered by a ``decide_halves``.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group: str
    max_wait_ms: Int64
    max_halves: Int64
    lease_ms: Int64


class HalfHeader(Message, frozen=True):
    """One header of a record."""

    name: str
    value: bytes | None


class HalfRecord(Message, frozen=True):
    """One record of a half message. ``partition`` -1: its key decides when it is committed."""

    topic: str
    partition: Int32
    key: bytes | None
    value: bytes | None
    headers: Sequence[HalfHeader]


class HalfQuestion(Message, frozen=True):
    """A half message to be checked, with its records; ``checks`` were answered before, without a decision."""

    txid: str
    prepared_ms: Int64
    checks: Int64
    records: Sequence[HalfRecord]


class PollHalvesReply(Message, frozen=True):
    """The half messages to be checked; empty = there was none within ``max_wait_ms``."""

    halves: Sequence[HalfQuestion]


class ListHalvesRequest(Message, frozen=True):
    """List half messages without decision, by group and txid, a page at a time.

    ``group`` empty = of all groups. ``after_group`` and ``after_txid``: the last row of the page before.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group: str
    after_group: str
    after_txid: str
    limit: Int64


class HeldHalf(Message, frozen=True):
    """A half message without decision. ``is_unresolved``: it was checked as often as allowed."""

    group: str
    txid: str
    prepared_ms: Int64
    next_check_ms: Int64
    checks: Int64
    is_unresolved: bool
    topics: Sequence[str]
    records: Int64


class ListHalvesReply(Message, frozen=True):
    """A page of rows; if it is full, the next one begins after its last row."""

    halves: Sequence[HeldHalf]


DECIDE_HALVES: Final = Method(
    "decide_halves", DecideHalvesRequest, DecideHalvesReply, TOKEN, TokenScope.HALVES, waits=True
)
POLL_HALVES: Final = Method("poll_halves", PollHalvesRequest, PollHalvesReply, TOKEN, TokenScope.HALVES, waits=True)
LIST_HALVES: Final = Method("list_halves", ListHalvesRequest, ListHalvesReply, CLIENT, waits=True)

HALF_METHODS: Final[tuple[AnyMethod, ...]] = (DECIDE_HALVES, POLL_HALVES, LIST_HALVES)
"""Requests about half messages."""
