"""What serves the requests that read a partition's leader, most of them from consumers.

Part of the machine's events and effects (``events.py``): the machine handles offsets, the shell bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raylog.base.ids import LeaderEpoch, Offset
from raylog.core.decision import RequestId
from raylog.core.received import Received
from raylog.protocol.replica import FetchNearRequest, FetchRequest, FindTimesRequest, ListOffsetsRequest

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass

ConsumerFetch: TypeAlias = Received[FetchRequest | FetchNearRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStillWaits:
    """A :class:`TryFetch` was not answered: below ``tried`` there are fewer bytes than the fetch requires.

    ``is_blocked``: no record was read, because the consumer has not taken earlier answers yet, or because other
    fetches have read as much as is read at once.
    """

    cause: str
    now_ms: int
    fetch: ConsumerFetch
    tried: Offset
    is_blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTurnBegan:
    """Other requests have had their turn since fetches were blocked: the blocked fetches are tried again."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TryFetch:
    """Answer a consumer with records below ``upper``, or its last stable offset, if they reach its minimum of bytes.

    Otherwise feed ``FetchStillWaits``, unless ``is_last``: the fetch timed out and must be answered, as soon as fetches
    may read. ``exposed`` is the high watermark that the answer names, -1 while it is not known.
    """

    fetch: ConsumerFetch
    upper: Offset
    exposed: int
    log_start_offset: Offset
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTimestamp:
    """Answer a look-up of a time, or a search for batches of a span of time, with what is found below ``upper``."""

    request: RequestId
    message: ListOffsetsRequest | FindTimesRequest
    upper: Offset
    leader_epoch: LeaderEpoch


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
