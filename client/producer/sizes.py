"""Size limits of a record: how `send()` counts its size, and what the leader will check. Pure.

A leader checks whole batches, with their header, against the topic's `max.message.bytes`. So the size of a record is
that of a batch which holds only this record. Kafka's producer counts likewise, against `max.request.size`, before
compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import RecordTooLarge
from raylog.client.types import Header
from raylog.rpc import Limits
from raylog.storage.batch.header import HEADER_BYTES
from raylog.storage.batch.records import BODY_BYTES_MAX, RECORDS_MAX

INT_MAX: Final = 2**31 - 1
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""The default of `max.message.bytes`, as in Kafka and at the brokers."""
RECORD_OVERHEAD_BYTES: Final = 12
"""Counted for each record besides its key, value and headers: msgpack's lengths and the timestamp."""
HEADER_OVERHEAD_BYTES: Final = 8
"""Counted for each header besides its name and value."""
PLAIN_BYTES_MAX: Final = BODY_BYTES_MAX - (1 << 20)
"""The most bytes of a batch before compression, whatever the configuration says: consumers open no larger body."""
FRAME_BYTES: Final = Limits().max_frame_bytes - (1 << 20)
"""The most bytes of a batch on the wire."""
_BATCH_SLACK_BYTES: Final = 128
"""lone_batch_bytes < count * 9/8 + this: how much a record's batch may exceed its count (if it has many headers)."""


def headers_size(headers: list[Header]) -> int:
    """The size of a record's headers as the producer counts it: names in UTF-8, values, and an overhead for each."""
    return sum(
        [
            len(name if name.isascii() else name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES
            for name, content in headers
        ]
    )


def most_counted_bytes(message_bytes: int) -> int:
    """The largest counted size at which a batch of many records certainly encodes to at most `message_bytes`.

    The smallest record counts 12 bytes and takes up to 14: two for the length of the key, two for that of the value,
    nine for the timestamp, one for no headers. If compression makes a body larger, it does so by much less than the
    margin of a fifth.
    """
    return max(1, min((message_bytes - HEADER_BYTES - 20) * 4 // 5, RECORDS_MAX * RECORD_OVERHEAD_BYTES))


def lone_batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """The exact size in bytes of an uncompressed batch that holds only this record."""
    size = HEADER_BYTES + 2  # the array of columns, and no timestamp deltas
    for content in (key, value):
        size += 1 if content is None else 1 + _bytes_size(content)
    if not headers:
        return size + 1
    size += 1 + _array_size(len(headers))
    for name, content in headers:
        size += 1 + _text_size(name) + (1 if content is None else _bytes_size(content))
    return size


def _bytes_size(content: bytes) -> int:
    size = len(content)
    return size + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def _text_size(text: str) -> int:
    size = len(text if text.isascii() else text.encode())
    return size + (1 if size < 32 else 2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def _array_size(count: int) -> int:
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


@dataclass(frozen=True, slots=True)
class LargestRecord:
    """The size limits of a topic for this producer."""

    topic: str
    request_bytes: int
    """The producer's max_request_size, before compression."""
    message_bytes: int
    """The topic's max.message.bytes, after compression."""
    is_compressed: bool

    @property
    def limit(self) -> int:
        """The most bytes of a batch of one record, uncompressed.

        With compression the topic's limit is left to the leader: the record may become small enough.
        """
        own = min(self.request_bytes, PLAIN_BYTES_MAX)
        return own if self.is_compressed else min(own, self.message_bytes, FRAME_BYTES)

    @property
    def check_from(self) -> int:
        """A record whose counted size is at most this certainly fits; a larger one has to be checked."""
        return (self.limit - _BATCH_SLACK_BYTES) * 8 // 9

    def check(self, key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> None:
        """Raise RecordTooLarge for a record over the limit of the topic, the producer, a request or a consumer."""
        size = lone_batch_bytes(key, value, headers)
        if size > self.limit:
            if self.limit in (PLAIN_BYTES_MAX, FRAME_BYTES):
                what = "a reader opens" if self.limit == PLAIN_BYTES_MAX else "one request takes"
                reason = f"The record makes a batch of {size} bytes, and {what} {self.limit} at most; send less."
                raise RecordTooLarge(reason, size=size)
            is_own = self.limit == self.request_bytes
            named = f"max_request_size={self.limit}" if is_own else f"max.message.bytes={self.limit} of {self.topic!r}"
            hint = "send less, or raise that limit" + (" and the topic's max.message.bytes." if is_own else ".")
            raise RecordTooLarge(f"The record makes a batch of {size} bytes, over {named}; {hint}", size=size)
