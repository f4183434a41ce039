"""Requests that read a partition's leader, most of them from consumers, and the effects that serve them.

Part of the machine's events and effects (``events.py``): the machine handles offsets, the shell bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.base.ids import LeaderEpoch, Offset
from raylog.core.decision import RequestId

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFetchReceived:
    """A consumer fetches from ``fetch_offset`` on; ``leader_epoch`` -1 = unknown.

    The rest is for the shell: the sizes, ``is_near`` (the consumer reads the leader's files itself), and
    ``committed_only`` (it reads below the last stable offset, which moves with the high watermark only).
    """

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    deadline_ms: int
    max_bytes: int
    min_bytes: int
    is_near: bool = False
    committed_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStillWaits:
    """A :class:`TryFetch` was not answered: below ``tried`` there are fewer bytes than the fetch requires.

    ``is_blocked``: no record was read, because the consumer has not taken earlier answers yet, or because other
    fetches have read as much as is read at once.
    """

    cause: str
    now_ms: int
    fetch: ConsumerFetchReceived
    tried: Offset
    is_blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTurnBegan:
    """Other requests have had their turn since fetches were blocked: the blocked fetches are tried again."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A search for batches with records within a span of time, from ``offset`` on; ``None`` = no bound."""

    offset: Offset
    low_ms: int | None
    end_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsReceived:
    """List-offsets request: the offset of a time, of the start, of the end, or of the newest record (``core.ids``).

    ``committed_only``: the log ends at its last stable offset. With a ``span``, the search is for that instead.
    """

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch
    timestamp: int
    committed_only: bool = False
    span: TimeSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndReceived:
    """End-offset-for-leader-epoch request: the consumer compares the end of ``epoch`` with its position (KIP-320)."""

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersReceived:
    """Request for the producers that the log knows."""

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch


ConsumerRequest = ConsumerFetchReceived | ListOffsetsReceived | EpochEndReceived | DescribeProducersReceived


@dataclass(frozen=True, slots=True, kw_only=True)
class TryFetch:
    """Answer a consumer with records below ``upper``, or its last stable offset, if they reach its minimum of bytes.

    Otherwise feed ``FetchStillWaits``, unless ``is_last``: the fetch timed out and must be answered, as soon as fetches
    may read. ``exposed`` is the high watermark that the answer names, -1 while it is not known.
    """

    fetch: ConsumerFetchReceived
    upper: Offset
    exposed: int
    log_start_offset: Offset
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTimestamp:
    """Answer with the first record below ``upper`` that is not older than ``timestamp``, or with the newest one.

    ``committed_only``: only records below the last stable offset too. With a ``span``, answer where it has records
    instead.
    """

    request: RequestId
    timestamp: int
    upper: Offset
    leader_epoch: LeaderEpoch
    committed_only: bool = False
    span: TimeSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOffset:
    """Answer with an offset; with the last stable offset if that is lower and ``committed_only``."""

    request: RequestId
    offset: Offset
    leader_epoch: LeaderEpoch
    committed_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEpochEnd:
    """Answer with the largest epoch not above the requested one, and with its end."""

    request: RequestId
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducers:
    """Answer with the producers that the log knows."""

    request: RequestId


ConsumerEffect = TryFetch | FindTimestamp | AnswerOffset | AnswerEpochEnd | DescribeProducers
