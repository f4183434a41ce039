"""A batch of records, from `send()` to its acknowledgement.

`send()` fills batches from any thread, the sender encodes and delivers them on the loop. The objects for waiting are
made once per batch, and only when a thread waits (see `futures`). No I/O.
"""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Sequence
from time import time
from typing import NamedTuple

from raylog.client.guard import this_process
from raylog.client.runtime import Signal
from raylog.client.types import Header
from raylog.core.errors import ClientClosed, RaylogError
from raylog.storage.batch.header import MAGIC_COLUMNS, BatchMeta, header_before, parse_header
from raylog.storage.batch.records import decode_batch, encode_batch, encode_stamped

logger = logging.getLogger(__name__)

JOIN_BELOW_BYTES = 8 * 1024
"""A connection would copy a body below this beside the header in any case."""

QUEUED, SENT, STORED = "queued", "sent", "stored"
SEQUENCE_MASK = 2**31 - 1
"""Sequences go on at 0 behind it."""


class EncodedBody(NamedTuple):
    """The body of a batch that was encoded before it came to the producer (`raylog.client.encoding`)."""

    body: bytes
    """Compressed, as `compression` names it."""
    records: int
    first_ms: int
    last_ms: int
    """The highest timestamp."""
    size: int
    """Bytes of the records as the producer counts them, before compression."""
    compression: int


class Batch:
    """Records of one partition. Open while `send()` appends; then encoded, sent, perhaps retried, and done."""

    __slots__ = (
        "_callbacks", "attempts", "base_offset", "base_sequence", "body", "deadline_s", "encoded", "encoded_bytes",
        "error", "forks", "headers", "is_done", "is_refused_as_out_of_order", "is_refused_as_too_large", "keys",
        "loop_thread", "opened_s", "partition", "pieces", "quick_from_s", "quick_until_s", "record_count", "replaced",
        "reserved", "room", "sent_s", "size", "stamps", "state", "topic", "values",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, opened_s: float, deadline_s: float, loop_thread: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.keys: list[bytes | None] = []
        """Empty when no record has one."""
        self.values: list[bytes | None] = []
        self.stamps: list[tuple[int, int]] = []
        """The timestamps in milliseconds, each with the index of the first record that has it: many share one."""
        self.quick_from_s = self.quick_until_s = 0.0
        """The millisecond of the last record, in seconds. A record of the same millisecond only appends its value, and
        its key if the others have keys. Empty when the batch has headers, or its last record a timestamp from the
        user."""
        self.headers: list[list[Header] | None] | None = None
        self.body: EncodedBody | None = None
        """Instead of columns: they were encoded by the caller."""
        self.reserved = 0
        """Bytes of the producer's memory that the open batch holds: its records, and `room` for more."""
        self.room = 0
        self.size = 0
        """Bytes of the records as the producer counts them, before compression; known when the batch is closed."""
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        self.loop_thread = loop_thread
        self.forks = this_process.forks
        # State of the sender.
        self.record_count = 0
        self.encoded: bytes | tuple[bytes, ...] = b""
        """The encoded bytes; in parts if a large body would have to be copied to join them."""
        self.encoded_bytes = 0
        self.base_sequence = -1
        self.state = QUEUED
        self.attempts = 0
        """Number of attempts; also separates the answer of the last attempt from a late one of an earlier."""
        self.sent_s = 0.0
        self.is_refused_as_out_of_order = False
        self.is_refused_as_too_large = False
        self.pieces: list[Batch] = []
        """What is sent in its place after `cut`, in order; each has its own outcome, and the batch is done with all."""
        # Result.
        self.is_done = False
        self.base_offset = -1
        self.replaced: Sequence[int] = ()
        """Of delayed records with schedule ids, as the reply says it."""
        self.error: RaylogError | None = None
        self._callbacks: deque[Callable[[], object]] = deque()
        """What takes one out calls it. Its steps are atomic: with a lock, a signal handler that waits for the loop
        could keep the loop waiting for the thread that it has interrupted."""

    # Filling, under the accumulator's lock

    def add(
        self, key: bytes | None, value: bytes | None, headers: list[Header] | None, timestamp_ms: int | None
    ) -> int:
        """Append a record; returns its index. Without a timestamp it gets the current time."""
        index = len(self.values)
        try:
            if timestamp_ms is None:
                timestamp_ms = int(time() * 1000)
                self.quick_from_s, self.quick_until_s = timestamp_ms / 1000, (timestamp_ms + 1) / 1000
            else:
                self.quick_until_s = 0.0
            if not self.stamps or self.stamps[-1][1] != timestamp_ms:
                self.stamps.append((index, timestamp_ms))
            if key is not None or self.keys:
                self.keys += [None] * (index - len(self.keys))
                self.keys.append(key)
            if headers is not None or self.headers is not None:
                self.headers = self.headers or []
                self.headers += [None] * (index - len(self.headers))
                self.headers.append(headers)
                self.quick_until_s = 0.0
            self.values.append(value)
        except BaseException:  # Ctrl-C may come between two columns
            self.even_out()
            raise
        return index

    def even_out(self) -> None:
        """After Ctrl-C, or another error in the middle of an append: drop the partial record."""
        count = len(self.values)
        del self.keys[count:]
        if self.headers is not None:
            del self.headers[count:]

    # Encoding

    def encode(
        self, compression: int, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int = 0
    ) -> None:
        """Close and encode the batch; the columns are not kept. `attributes`: without the codec's number."""
        self.base_sequence = base_sequence
        meta = BatchMeta(producer_id, producer_epoch, base_sequence, attributes=attributes)
        if self.body is not None:
            body = self.body.body
            header = _header_of(self.body, meta)
            self.body = None
        else:
            self.record_count = len(self.values)
            header, body = encode_stamped(
                self.keys or None, self.values, self.stamps, self.headers, meta, compression=compression
            )
        self.encoded_bytes = len(header) + len(body)
        self.encoded = header + body if len(body) < JOIN_BELOW_BYTES else (header, body)
        self.keys, self.values, self.headers = [], [], None

    def encode_again(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """The same records under another producer id, epoch and sequence: these lie inside the checksum."""
        encoded = self.encoded if isinstance(self.encoded, bytes) else b"".join(self.encoded)
        header = parse_header(encoded)
        columns = decode_batch(encoded, 0, header, verify=False)
        self.base_sequence = base_sequence
        self.encoded = encode_batch(
            columns.keys,
            [None] * self.record_count if columns.values is None else columns.values,
            columns.timestamps,
            columns.headers,
            BatchMeta(producer_id, producer_epoch, base_sequence),
            compression=header.compression,
        )

    def cut(self, bytes_max: int, attributes: int) -> list[Batch]:
        """Cut an encoded batch of several records into pieces that are sent in its place; it is done when they are.

        Each piece has at most `bytes_max` bytes, or one record. There are two at least. Sequences go on through them,
        so none of the batch may be stored. `attributes`: as of `encode`.
        """
        encoded = self.encoded if isinstance(self.encoded, bytes) else b"".join(self.encoded)
        header = parse_header(encoded)
        columns = decode_batch(encoded, 0, header, verify=False)
        values: list[bytes | None] = [None] * self.record_count if columns.values is None else columns.values
        pieces: list[Batch] = []
        spans = [(self.record_count // 2, self.record_count), (0, self.record_count // 2)]
        while spans:
            first, end = spans.pop()
            sequence = (header.base_sequence + first) & SEQUENCE_MASK if header.base_sequence >= 0 else -1
            piece_bytes = encode_batch(
                columns.keys and columns.keys[first:end],
                values[first:end],
                columns.timestamps[first:end],
                columns.headers and columns.headers[first:end],
                BatchMeta(header.producer_id, header.producer_epoch, sequence, attributes=attributes),
                compression=header.compression,
            )
            if len(piece_bytes) > bytes_max and end - first > 1:
                middle = (first + end) // 2
                spans += [(middle, end), (first, middle)]
                continue
            piece = Batch(self.topic, self.partition, self.opened_s, self.deadline_s, self.loop_thread)
            piece.encoded, piece.encoded_bytes, piece.base_sequence = piece_bytes, len(piece_bytes), sequence
            piece.record_count = end - first
            piece.stamps = list(enumerate(columns.timestamps[first:end]))
            # Shares of the batch's memory, which add up to it.
            piece.size = self.size * end // self.record_count - self.size * first // self.record_count
            pieces.append(piece)
        self.pieces, self.encoded = pieces, b""
        for piece in pieces:
            piece.when_done(self._piece_done)
        return pieces

    def _piece_done(self) -> None:
        if all(piece.is_done for piece in self.pieces):
            self.error = next((piece.error for piece in self.pieces if piece.error is not None), None)
            self._finish()

    def leaves(self) -> list[Batch]:
        """What was sent: the batch itself, or all its pieces in order."""
        return [leaf for piece in self.pieces for leaf in piece.leaves()] if self.pieces else [self]

    def leaf_of(self, index: int) -> tuple[Batch, int]:
        """The batch that was sent with a record, and the record's index in it."""
        batch = self
        while batch.pieces:
            for piece in batch.pieces:
                if index < piece.record_count:
                    batch = piece
                    break
                index -= piece.record_count
        return batch, index

    # Completion

    def complete(self, base_offset: int) -> None:
        """Complete the batch: all records are stored, the first at `base_offset` (-1: not known)."""
        self.base_offset = base_offset
        self._finish()

    def fail(self, error: RaylogError) -> None:
        """Fail the batch: none of its records counts as stored."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.encoded = b""
        self.keys, self.values, self.headers, self.body = [], [], None, None
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:  # a thread has taken the last one meanwhile
                return
            _call(callback)

    # Waiting

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until the batch is done; False when `timeout_s` ended first. Not for the loop's thread."""
        if threading.get_ident() == self.loop_thread:
            raise RuntimeError("This would block the event loop that sends the record; await the future instead.")
        if self.forks != this_process.forks:
            self._check_process()
        signal = Signal()
        callback = signal.set  # one object, by which it is found again
        self._callbacks.appendleft(callback)  # before those that may take longer
        try:
            return self.is_done or signal.wait(timeout_s) or self.is_done
        finally:
            self.stop_waiting(callback)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, on the loop's thread when the batch gets done, or at once if it is."""
        if self.forks != this_process.forks:
            self._check_process()
        self._callbacks.append(callback)
        if self.is_done and self.stop_waiting(callback):
            _call(callback)

    def _check_process(self) -> None:
        if not self.is_done:
            raise ClientClosed(
                "The record was sent before the fork, by a producer of the parent process, where its outcome is known; "
                "make a new producer in the child process."
            )

    def stop_waiting(self, callback: Callable[[], object]) -> bool:
        """Forget a callback of `when_done`: no caller waits for it any more; whether it was there. Idempotent."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True


def _header_of(encoded: EncodedBody, meta: BatchMeta) -> bytes:
    return header_before(
        encoded.body,
        magic=MAGIC_COLUMNS,
        count=encoded.records,
        first_timestamp=encoded.first_ms,
        max_timestamp=encoded.last_ms,
        compression=encoded.compression,
        meta=meta,
    )


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except (Exception, CancelledError):  # an error in the user's callback must not keep other records from completing
        logger.exception("A callback of a sent record raised an error.")
    except SystemExit:
        if threading.current_thread() is threading.main_thread():
            raise
        logger.exception("A callback of a sent record cannot end the process: it runs in the clients' thread.")
