"""Events and effects of a broker that answers in place of the leaders of sleeping partitions.

A request names the topic by its id. ``request`` is the shell's number for it; ``deadline_ms`` is monotonic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from raylog.base.errors import RaylogError
from raylog.base.ids import LeaderEpoch, Offset, TopicPartition
from raylog.core.decision import RequestId

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRequest:
    """Common fields of the requests to a leader; ``leader_epoch`` -1 = the client does not know it."""

    now_ms: int
    request: RequestId
    topic_id: str
    partition: int
    leader_epoch: LeaderEpoch
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReceived(LeaderRequest):
    """A request that needs the log, such as produce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReceived(LeaderRequest):
    """A consumer's fetch."""

    fetch_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsReceived(LeaderRequest):
    """A list-offsets request: a time, or one of the special values (``base.ids``)."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndReceived(LeaderRequest):
    """A request for the end of a leader epoch."""

    epoch: LeaderEpoch


Request = WriteReceived | FetchReceived | ListOffsetsReceived | EpochEndReceived


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChanged:
    """The broker's metadata has changed in these partitions; None = the whole image was replaced."""

    now_ms: int
    partitions: Collection[TopicPartition] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRefused:
    """The controller did not wake a partition."""

    now_ms: int
    partition: TopicPartition
    error: RaylogError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChanged:
    """The broker's session with the controller began or ended."""

    now_ms: int
    is_connected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped:
    """The connection of a waiting request is closed."""

    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed. ``deleting_ms`` is the time of day to delete by, in milliseconds since 1970."""

    now_ms: int
    deleting_ms: int


Event = Request | MetadataChanged | WakeRefused | LinkChanged | RequestDropped | Tick

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Answer a fetch that waited at the end, without records."""

    request: RequestId
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOffset:
    """Answer a list-offsets request; -1 = there is no such record."""

    request: RequestId
    offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEpochEnd:
    """Answer a request for the end of a leader epoch."""

    request: RequestId
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRequest:
    """Answer a request with an error."""

    request: RequestId
    error: RaylogError


@dataclass(frozen=True, slots=True, kw_only=True)
class WakePartition:
    """Request the controller to wake a partition; :class:`WakeRefused` follows if it does not."""

    partition: TopicPartition


Effect = AnswerFetch | AnswerOffset | AnswerEpochEnd | RefuseRequest | WakePartition
