"""A batch of records, from `send()` to its acknowledgement.

`send()` fills batches from any thread; the sender encodes and delivers them on the loop. Objects to wait with are made
only when a thread waits (see `futures`). No I/O.
"""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Sequence
from time import time
from typing import NamedTuple

from raylog.base.errors import ClientClosed, RaylogError
from raylog.client.guard import this_process
from raylog.client.runtime import Signal
from raylog.client.types import Header
from raylog.storage.batch.header import MAGIC_COLUMNS, BatchMeta, header_before, parse_header
from raylog.storage.batch.records import decode_batch, encode_batch, encode_stamped

logger = logging.getLogger(__name__)

JOIN_BELOW_BYTES = 8 * 1024
"""Bodies below this size are joined with their header, since the connection would copy them in any case."""

QUEUED, SENT, STORED = "queued", "sent", "stored"
SEQUENCE_MASK = 2**31 - 1
"""The highest sequence number; 0 follows it."""


class EncodedBody(NamedTuple):
    """The body of a batch that was encoded before it was passed to the producer (`arrow_columns.py`)."""

    body: bytes
    """Compressed with the codec number `compression`."""
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
        """Empty if no record has a key."""
        self.values: list[bytes | None] = []
        self.stamps: list[tuple[int, int]] = []
        """Run-length encoded timestamps: (index of the first record of the run, milliseconds)."""
        self.quick_from_s = self.quick_until_s = 0.0
        """The millisecond of the last record, as an interval in seconds. A record of the same millisecond can be added
        by appending just its value, and its key if the others have keys. Empty interval if the batch has headers, or
        the last record a timestamp from the user."""
        self.headers: list[list[Header] | None] | None = None
        self.body: EncodedBody | None = None
        """The encoded body, if the caller has encoded the records; then the columns are empty."""
        self.reserved = 0
        """Bytes of the producer's memory that the open batch has reserved: for its records, and `room` for more."""
        self.room = 0
        self.size = 0
        """Bytes of the records as the producer counts them, before compression; set when the batch is sealed."""
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        self.loop_thread = loop_thread
        self.forks = this_process.forks
        # State of the sender.
        self.record_count = 0
        self.encoded: bytes | tuple[bytes, ...] = b""
        """The encoded batch; in two parts (header, body) if the body is large, which saves a copy."""
        self.encoded_bytes = 0
        self.base_sequence = -1
        self.state = QUEUED
        self.attempts = 0
        """Number of attempts; the late answer of an earlier attempt is ignored."""
        self.sent_s = 0.0
        self.is_refused_as_out_of_order = False
        self.is_refused_as_too_large = False
        self.pieces: list[Batch] = []
        """After `cut`: the batches sent in its place, in order. Each has its own outcome; this is done when all are."""
        # Result.
        self.is_done = False
        self.base_offset = -1
        self.replaced: Sequence[int] = ()
        """For delayed records with schedule ids: which of them replaced an earlier one, as in the reply."""
        self.error: RaylogError | None = None
        self._callbacks: deque[Callable[[], object]] = deque()
        """Whatever removes a callback calls it. The deque's operations are atomic, and there is no lock: a signal
        handler that waits for the loop could interrupt the thread that holds the lock, and block the loop
        with it for good."""

    # Filling, under the accumulator's lock

    def add(
        self, key: bytes | None, value: bytes | None, headers: list[Header] | None, timestamp_ms: int | None
    ) -> int:
        """Append a record; return its index. Without a timestamp it gets the current time."""
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
        """Drop a partial record, after Ctrl-C or another error in the middle of an append."""
        count = len(self.values)
        del self.keys[count:]
        if self.headers is not None:
            del self.headers[count:]

    # Encoding

    def encode(
        self, compression: int, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int = 0
    ) -> None:
        """Encode the batch, and drop its columns. `attributes`: of the header, without the codec bits."""
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
        """Encode it again with another producer id, epoch and sequence: the checksum covers these."""
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
        """Split an encoded batch into pieces that are sent in its place; it is done when they all are.

        There are at least two pieces, each of at most `bytes_max` bytes or of one record. Their sequences are those of
        the batch's records, so none of these may be stored already. `attributes` as in `encode`.
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
            # Each piece gets a share of the batch's memory; the shares add up to it.
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
        """The batches that were sent: itself, or all its pieces in order."""
        return [leaf for piece in self.pieces for leaf in piece.leaves()] if self.pieces else [self]

    def leaf_of(self, index: int) -> tuple[Batch, int]:
        """The batch in which a record was sent (itself or a piece), and the record's index there."""
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
        """Complete the batch: all records are stored, the first at `base_offset` (-1 = not known)."""
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
        """Block this thread until the batch is done; False after `timeout_s`. Not for the loop's thread."""
        if threading.get_ident() == self.loop_thread:
            raise RuntimeError("This would block the event loop that sends the record; await the future instead.")
        if self.forks != this_process.forks:
            self._check_process()
        signal = Signal()
        callback = signal.set  # a single bound method, so that it can be removed again
        self._callbacks.appendleft(callback)  # first, since other callbacks may take longer
        try:
            return self.is_done or signal.wait(timeout_s) or self.is_done
        finally:
            self.stop_waiting(callback)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once: in the loop's thread when the batch is done, or here and now if it is done already."""
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
        """Remove a callback of `when_done`, whose caller no longer waits; return whether it was there. Idempotent."""
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
    except (Exception, CancelledError):  # a failing user callback must not stop the others
        logger.exception("A callback of a sent record raised an error.")
    except SystemExit:
        if threading.current_thread() is threading.main_thread():
            raise
        logger.exception("A callback of a sent record cannot end the process: it runs in the clients' thread.")
