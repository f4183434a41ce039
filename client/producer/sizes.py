"""Size limits of a record: what `send()` counts, and what the leader will check. Pure.

A leader checks whole batches, header included, against the topic's `max.message.bytes`. So a record is as large as the
batch that holds it alone. Kafka's producer counts the same way, against `max.request.size`, before compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raylog.client.types import Header
from raylog.core.errors import RecordTooLarge
from raylog.rpc import Limits
from raylog.storage.batch.header import HEADER_BYTES
from raylog.storage.batch.records import BODY_BYTES_MAX, RECORDS_MAX

INT_MAX: Final = 2**31 - 1
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Of a topic without `max.message.bytes`: Kafka's default, and the brokers'."""
RECORD_OVERHEAD_BYTES: Final = 12
"""What a record counts besides its key and value: msgpack's lengths and the timestamp."""
HEADER_OVERHEAD_BYTES: Final = 8
"""What a header of a record counts besides its name and value."""
PLAIN_BYTES_MAX: Final = BODY_BYTES_MAX - (1 << 20)
"""Most bytes of a batch before compression, whatever the configuration has: readers open no larger body."""
FRAME_BYTES: Final = Limits().max_frame_bytes - (1 << 20)
"""Most bytes of a batch on the wire."""
_BATCH_SLACK_BYTES: Final = 128
"""A batch exceeds the counted size of one record by less than this, plus an eighth of that (many headers)."""


def headers_size(headers: list[Header]) -> int:
    """Bytes of a record's headers as the producer counts them: names in UTF-8, values, and what surrounds them."""
    return sum(
        [
            len(name if name.isascii() else name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES
            for name, content in headers
        ]
    )


def most_counted_bytes(message_bytes: int) -> int:
    """The largest count at which a batch of many records certainly encodes to `message_bytes` or less.

    The smallest record counts 12 bytes and takes 14 at most: two of lengths for key and value each, nine of a timestamp
    and one of no headers. A body that compression cannot make smaller grows by much less than the rest.
    """
    return max(1, min((message_bytes - HEADER_BYTES - 20) * 4 // 5, RECORDS_MAX * RECORD_OVERHEAD_BYTES))


def lone_batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """Bytes of the uncompressed batch that holds this record and no other, exactly."""
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
        """The most bytes of the batch of one record; compressed it may become small enough for the topic."""
        own = min(self.request_bytes, PLAIN_BYTES_MAX)
        return own if self.is_compressed else min(own, self.message_bytes, FRAME_BYTES)

    @property
    def check_from(self) -> int:
        """A record with at most this count certainly fits."""
        return (self.limit - _BATCH_SLACK_BYTES) * 8 // 9

    def check(self, key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> None:
        """Raise RecordTooLarge for a record over the leader's limit or the producer's own."""
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
