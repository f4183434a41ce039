"""A record of a queue as its consumer sees it, and what the consumer says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from raylog.client.accepted import Duration
from raylog.client.queues.config import milliseconds
from raylog.client.types import Header, Record
from raylog.core.errors import InvalidRequest
from raylog.core.ids import TopicPartition
from raylog.core.queues import events as ev
from raylog.core.queues.acknowledging import REASON_BYTES_MAX
from raylog.core.queues.archiving.origins import PREFIX, Origin, own_timestamp
from raylog.core.queues.states import shortened

_DURATION: Final = re.compile(r"\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)")


class Reject(Exception):
    """Raised by a handler of `run`: the record is not to be tried again, and becomes a dead letter at once."""


class Retry(Exception):
    """Raised by a handler of `run`: the record is to be tried again, after `delay` instead of the group's pause."""

    def __init__(self, message: str = "", *, delay: Duration | None = None) -> None:
        """Raises TypeError for a message that is a duration: the pause has a name."""
        if delay is None and isinstance(message, str) and _DURATION.fullmatch(message.strip()):
            raise TypeError(f"Retry({message!r}): the first argument is the reason; give a pause as delay={message!r}.")
        super().__init__(message)
        self.delay = delay


class Holder(Protocol):
    """The partition of a message, at its consumer."""

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        """Take a verdict."""

    def extend(self, message: QueueMessage, lock_ms: int) -> None:
        """Have a lock renewed for so long."""

    def wall_s(self, deadline: float) -> float:
        """A moment of the loop's clock as seconds since 1970."""

    def give_back(self, messages: Sequence[QueueMessage], kind: int) -> None:
        """Settle messages that were not taken, or that are not finished at the end."""

    def holds(self, message: QueueMessage) -> bool:
        """Whether a message's lock is known to hold."""

    def forget(self, message: QueueMessage) -> None:
        """Drop a message that was not taken, and whose lock is lost."""


Hand = tuple[int, int]
"""Which hand-out of a record: how often it was handed out, and the lease, which no other hand-out has."""


class Lock:
    """The lock of the records that were handed out together, until it is renewed or lost."""

    __slots__ = ("deadline", "hand", "session", "since", "source")

    def __init__(self, source: Holder, session: int, hand: Hand, deadline: float, since: float) -> None:
        self.since = since
        self.source = source
        self.session = session
        self.hand = hand
        self.deadline = deadline


class QueueMessage:
    """A record that is locked for this consumer until `lock_deadline`, unless the lock is renewed.

    Say exactly one thing about it: `ack`, `retry`, `reject` or `release`. None of them waits: they go to the broker
    together with others, within `acknowledge_linger_ms`. `commit()` of the consumer waits until all are stored.
    """

    __slots__ = ("_is_settled", "_lock", "_taken_by", "record")

    def __init__(self, record: Record, lock: Lock) -> None:
        self.record = record
        self._lock = lock
        self._is_settled = False
        self._taken_by = 0
        """The call that has taken it out of the buffer; 0: none."""

    @property
    def topic(self) -> str:
        """The topic."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition."""
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
        """The record's timestamp, in milliseconds since 1970; its own one too where a late retry hands out its copy."""
        if self.record.topic.startswith(PREFIX) and Origin.of(self.record.headers) is not None:
            return own_timestamp(self.record.headers, self.record.timestamp_ms)
        return self.record.timestamp_ms

    @property
    def key(self) -> Any:
        """The key: bytes, or what `key_deserializer` makes of them."""
        return self.record.key

    @property
    def value(self) -> Any:
        """The value: bytes, or what `value_deserializer` makes of them."""
        return self.record.value

    @property
    def headers(self) -> tuple[Header, ...]:
        """The headers."""
        return self.record.headers

    @property
    def delivery_count(self) -> int:
        """How often the record was handed out, this time included."""
        return self._lock.hand[0]

    @property
    def handed_at(self) -> float:
        """When the record came, in seconds since 1970."""
        return self._lock.source.wall_s(self._lock.since)

    @property
    def lock_deadline(self) -> float:
        """When the lock runs out at the earliest, in seconds since 1970; it moves when the broker has renewed it."""
        return self._lock.source.wall_s(self._lock.deadline)

    @property
    def is_settled(self) -> bool:
        """Whether something final was reported of it."""
        return self._is_settled

    @property
    def is_locked(self) -> bool:
        """Whether it is not settled and its lock holds, as far as is known here."""
        return not self._is_settled and self._lock.source.holds(self)

    def ack(self) -> None:
        """The work is done: the record is not handed out again. Raises InvalidRequest when it was settled before."""
        if self._is_settled:
            raise self._twice()
        self._is_settled = True
        self._lock.source.settle(self, ev.ACCEPT)

    def release(self) -> None:
        """Give the record back: it is available at once, and this hand-out counts."""
        self._settle(ev.RELEASE)

    def retry(self, delay: Duration | None = None, reason: str = "") -> None:
        """Have the record handed out again after `delay`, or after the group's pause.

        After the last hand-out that the group allows it becomes a dead letter. With order by key, later records of the
        key wait as well. Raises InvalidConfig for what is no duration.
        """
        self._settle(ev.RETRY, -1 if delay is None else milliseconds(delay), shortened(reason, REASON_BYTES_MAX))

    def reject(self, reason: str = "") -> None:
        """The record cannot be processed by any consumer: it becomes a dead letter, with this reason."""
        self._settle(ev.REJECT, -1, shortened(reason, REASON_BYTES_MAX))

    def extend(self, seconds: float) -> None:
        """Have the lock run out so many seconds from now, and not when the group's lock would.

        `lock_deadline` moves when the broker has confirmed it: sooner where the lock would be older than `lock_max`.
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
