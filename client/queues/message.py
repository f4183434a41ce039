"""The message of a queue consumer: a locked record, and the verdicts on it (ack, release, retry, reject)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from raylog.base.errors import InvalidRequest
from raylog.base.ids import TopicPartition
from raylog.client.accepted import Duration
from raylog.client.config import milliseconds
from raylog.client.types import Header, Record
from raylog.core.queues import events as ev
from raylog.core.queues.acknowledging import REASON_BYTES_MAX
from raylog.core.queues.origins import PREFIX, Origin, own_timestamp
from raylog.core.queues.states import shortened

_DURATION: Final = re.compile(r"\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)")


class Reject(Exception):
    """Raise it in a handler of `run` to make the record a dead letter at once."""


class Retry(Exception):
    """Raise it in a handler of `run` to retry the record after `delay` (None = after the group's pause)."""

    def __init__(self, message: str = "", *, delay: Duration | None = None) -> None:
        """Raises TypeError for a message that is a duration, which was probably meant as `delay`."""
        if delay is None and isinstance(message, str) and _DURATION.fullmatch(message.strip()):
            raise TypeError(f"Retry({message!r}): the first argument is the reason; give a pause as delay={message!r}.")
        super().__init__(message)
        self.delay = delay


class Holder(Protocol):
    """The source of messages (`QueueSource`), as messages use it."""

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        """Queue a verdict (`kind`) on a message for the leader."""

    def extend(self, message: QueueMessage, lock_ms: int) -> None:
        """Request that a message's lock lasts for `lock_ms` from now."""

    def wall_s(self, deadline: float) -> float:
        """A time of the monotonic clock as seconds since 1970."""

    def give_back(self, messages: Sequence[QueueMessage], kind: int) -> None:
        """Settle messages with one verdict that the user did not give."""

    def holds(self, message: QueueMessage) -> bool:
        """Whether a message is certainly still locked."""

    def forget(self, message: QueueMessage) -> None:
        """Drop a message that the user did not get, and whose lock is lost."""


Hand = tuple[int, int]
"""Identifies a hand-out of a record: its delivery count, and its lease, a number that no other hand-out has."""


class Lock:
    """The lock that records which were handed out together share, until it is renewed or lost."""

    __slots__ = ("deadline", "hand", "session", "since", "source")

    def __init__(self, source: Holder, session: int, hand: Hand, deadline: float, since: float) -> None:
        """`since`: when the records were received; `deadline`: when the lock expires (both monotonic, in seconds)."""
        self.since = since
        self.source = source
        self.session = session
        self.hand = hand
        self.deadline = deadline


class QueueMessage:
    """A record that is locked for this consumer until `lock_deadline`, unless the lock is renewed.

    Settle it with exactly one of `ack`, `retry`, `reject` and `release`. They do not wait: verdicts are sent to the
    broker together with others, within `acknowledge_linger_ms`. The consumer's `commit()` waits until all are stored.
    """

    __slots__ = ("_is_settled", "_lock", "_taken_by", "record")

    def __init__(self, record: Record, lock: Lock) -> None:
        self.record = record
        self._lock = lock
        self._is_settled = False
        self._taken_by = 0
        """The number of the call that took it out of the buffer; 0 = none."""

    @property
    def topic(self) -> str:
        """The topic's name; that of a retry topic after a late retry."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.record.partition

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        return self.record.offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, in milliseconds since 1970; after a late retry that of the original record."""
        if self.record.topic.startswith(PREFIX) and Origin.of(self.record.headers) is not None:
            return own_timestamp(self.record.headers, self.record.timestamp_ms)
        return self.record.timestamp_ms

    @property
    def key(self) -> Any:
        """The key: bytes or None, or the result of `key_deserializer`."""
        return self.record.key

    @property
    def value(self) -> Any:
        """The value: bytes or None, or the result of `value_deserializer`."""
        return self.record.value

    @property
    def headers(self) -> tuple[Header, ...]:
        """The headers, as (name, value) pairs."""
        return self.record.headers

    @property
    def delivery_count(self) -> int:
        """How often the record was handed out, including this time."""
        return self._lock.hand[0]

    @property
    def handed_at(self) -> float:
        """When the record was received, in seconds since 1970."""
        return self._lock.source.wall_s(self._lock.since)

    @property
    def lock_deadline(self) -> float:
        """When the lock expires at the earliest, in seconds since 1970. It moves when the broker renews the lock."""
        return self._lock.source.wall_s(self._lock.deadline)

    @property
    def is_settled(self) -> bool:
        """Whether it has a verdict: from the user, or because it was released."""
        return self._is_settled

    @property
    def is_locked(self) -> bool:
        """Whether it is not settled, and certainly still locked."""
        return not self._is_settled and self._lock.source.holds(self)

    def ack(self) -> None:
        """Acknowledge: the work is done, and the record is not handed out again.

        Raises InvalidRequest if it was settled before, as do `release`, `retry`, `reject` and `extend`.
        """
        if self._is_settled:
            raise self._twice()
        self._is_settled = True
        self._lock.source.settle(self, ev.ACCEPT)

    def release(self) -> None:
        """Make the record available again at once. This hand-out counts in `delivery_count`."""
        self._settle(ev.RELEASE)

    def retry(self, delay: Duration | None = None, reason: str = "") -> None:
        """Have the record handed out again after `delay` (None = the group's pause).

        After as many hand-outs as the group allows it becomes a dead letter instead. With order by key, later records
        of the key wait for it. Raises InvalidConfig for a `delay` that is no duration.
        """
        self._settle(ev.RETRY, -1 if delay is None else milliseconds(delay), shortened(reason, REASON_BYTES_MAX))

    def reject(self, reason: str = "") -> None:
        """Make the record a dead letter, with this reason: no consumer can process it."""
        self._settle(ev.REJECT, -1, shortened(reason, REASON_BYTES_MAX))

    def extend(self, seconds: float) -> None:
        """Have the lock expire so many seconds from now, instead of after the group's lock duration.

        `lock_deadline` moves when the broker has confirmed it; to an earlier time if the lock would exceed `lock_max`.
        """
        if self._is_settled:
            raise self._twice()
        self._lock.source.extend(self, max(1, round(seconds * 1000)))

    def _settle(self, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        if self._is_settled:
            raise self._twice()
        self._is_settled = True
        self._lock.source.settle(self, kind, delay_ms, reason)

    def _twice(self) -> InvalidRequest:
        return InvalidRequest(
            f"{self.topic_partition} at offset {self.offset} is settled already; say one thing about a record."
        )

    def __repr__(self) -> str:
        return f"<QueueMessage {self.topic_partition} offset {self.offset} delivery {self.delivery_count}>"
