"""What can go wrong with bytes on disk, named and numbered as in Kafka.

Raised by every module of `raylog.storage`; the replica actor turns `code` into the wire error, and the client raises
the batch errors itself when it opens a batch. Imports the standard library only.

Two attributes tell a caller what to do without knowing the class: `code` is Kafka's error number, `retriable` says
whether the same request may succeed later.
"""

from __future__ import annotations

import errno
from typing import ClassVar


class StorageError(Exception):
    """The root of all storage errors."""

    code: ClassVar[int] = 56
    retriable: ClassVar[bool] = False


class CorruptBatch(StorageError):
    """The bytes are not a whole, valid record batch. A producer may send the batch again."""

    code: ClassVar[int] = 2
    retriable: ClassVar[bool] = True

    def __init__(self, reason: str, *, position: int = 0) -> None:
        super().__init__(f"Record batch at byte {position} is corrupt: {reason}. Send or fetch it again.")
        self.reason = reason
        self.position = position


class OffsetOutOfRange(StorageError):
    """The log does not hold the asked offset. Reset the position to `start` or `end` (exclusive)."""

    code: ClassVar[int] = 1

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"Offset {offset} is outside the log, which runs from {start} to {end}. Reset the position.")
        self.offset = offset
        self.start = start
        self.end = end
        self.details = {"start": start, "end": end}


class RecordTooLarge(StorageError):
    """A batch is larger than max.message.bytes. Send smaller batches or raise the topic's limit."""

    code: ClassVar[int] = 10

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"Record batch of {size} bytes exceeds max.message.bytes={limit}. Send smaller batches or raise the limit."
        )
        self.size = size
        self.limit = limit


class UnsupportedCompression(StorageError):
    """The batch names a codec that we do not know or whose library is not installed."""

    code: ClassVar[int] = 76

    def __init__(self, codec: object, hint: str = "Use none, gzip, snappy, lz4 or zstd") -> None:
        super().__init__(f"Compression {codec!r} is not supported. {hint}.")
        self.codec = codec


class InvalidRecord(StorageError):
    """The header of a batch says what no producer may write. Sending it again does not help."""

    code: ClassVar[int] = 87

    def __init__(self, reason: str) -> None:
        super().__init__(f"Record batch is refused: {reason}.")


class InvalidTimestamp(StorageError):
    """A timestamp is too far from the broker's clock. Kafka 4's rule (KIP-937)."""

    code: ClassVar[int] = 32

    def __init__(self, timestamp_ms: int, now_ms: int, key: str, limit_ms: int) -> None:
        side = "ahead of" if timestamp_ms > now_ms else "behind"
        super().__init__(
            f"Timestamp {timestamp_ms} is {abs(timestamp_ms - now_ms)} ms {side} the broker's clock, {key}={limit_ms}. "
            "Timestamps are milliseconds since 1970: check the unit and the clocks."
        )
        self.timestamp_ms = timestamp_ms


class InvalidTimestampType(StorageError):
    """A producer claims that the broker has set the timestamps."""

    code: ClassVar[int] = 32

    def __init__(self) -> None:
        super().__init__("A producer must not set the timestamp type LogAppendTime; send CreateTime.")


class OutOfOrderSequence(StorageError):
    """A producer's sequence number does not follow the last one: a batch before it was lost."""

    code: ClassVar[int] = 45

    def __init__(self, producer_id: int, expected: int, got: int) -> None:
        super().__init__(
            f"Producer {producer_id} sent sequence {got} where {expected} must follow. "
            "Send the missing batch first, or take a new producer epoch."
        )
        self.producer_id = producer_id
        self.expected = expected
        self.got = got


class DuplicateSequence(StorageError):
    """A request mixes batches that are stored already with new ones. Send the new ones alone."""

    code: ClassVar[int] = 46

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(
            f"Producer {producer_id} sent sequence {sequence} again together with new batches. Send the new ones alone."
        )
        self.producer_id = producer_id
        self.sequence = sequence


class InvalidProducerEpoch(StorageError):
    """A newer instance of the producer has written: this one is fenced."""

    code: ClassVar[int] = 47

    def __init__(self, producer_id: int, current: int, got: int) -> None:
        super().__init__(
            f"Producer {producer_id} has epoch {got}, but epoch {current} has written already. "
            "This producer is fenced; start a new one."
        )
        self.producer_id = producer_id
        self.current = current
        self.got = got


class StorageIoError(StorageError):
    """The operating system refused a read, a write or a sync."""

    retriable: ClassVar[bool] = True

    def __init__(self, action: str, error: OSError) -> None:
        super().__init__(f"Could not {action}: {error}. Check the disk and the kernel log.")
        self.errno = error.errno


class DiskFull(StorageError):
    """No space, or no quota, is left. Nothing of the append was kept; the log stays readable and writable."""

    retriable: ClassVar[bool] = True

    def __init__(self, action: str, error: OSError) -> None:
        super().__init__(f"Could not {action}: {error}. Free some space, lower retention, or add a broker.")
        self.errno = error.errno


class DescriptorsExhausted(StorageError):
    """The process has no file descriptor left. Nothing was lost; the same call succeeds when there is one again."""

    retriable: ClassVar[bool] = True

    def __init__(self, action: str, error: OSError) -> None:
        super().__init__(
            f"Could not {action}: {error}. The disk is not at fault: raise the descriptor limit (ulimit -n), "
            "or close connections."
        )
        self.errno = error.errno


class NotDurable(StorageError):
    """A file was replaced, but its folder could not be synced: the new content is there, and may be lost."""

    retriable: ClassVar[bool] = True

    def __init__(self, path: object, cause: StorageError) -> None:
        super().__init__(f"{path} was written, but may be lost with the machine's power: {cause}")


class LogDamaged(StorageError):
    """Bytes that had been synced are wrong. They are never cut silently: rebuild this replica from its peers."""

    def __init__(self, path: object, position: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position} (offset {offset}): {reason}. "
            "These bytes had been synced, so nothing was changed; rebuild this replica from its peers."
        )
        self.path = str(path)
        self.position = position
        self.offset = offset
        self.reason = reason


class DirectoryInUse(StorageError):
    """Another living process holds the data directory."""

    def __init__(self, path: object, pid: int, command: str, since: str, host: str) -> None:
        super().__init__(
            f"Data directory {path} is in use by process {pid} ({command}) on {host} since {since}. "
            "Stop that process or choose another directory."
        )
        self.pid = pid
        self.command = command
        self.since = since
        self.host = host


class WrongDirectory(StorageError):
    """The data directory belongs to another broker or cluster."""

    def __init__(self, path: object, field: str, found: str, asked: str) -> None:
        super().__init__(
            f"Data directory {path} has {field}={found}, but this broker has {field}={asked}. "
            "Give this broker its own directory, or start it with the identity of that directory."
        )
        self.field = field
        self.found = found
        self.asked = asked


class WrongTopicId(StorageError):
    """The partition folder holds another topic of the same name, deleted since. Delete the folder."""

    code: ClassVar[int] = 103

    def __init__(self, path: object, found: str, asked: str) -> None:
        super().__init__(
            f"{path} holds topic id {found}, but topic id {asked} was asked for. "
            "The topic was deleted and created again; remove the old folder."
        )
        self.found = found
        self.asked = asked


class LogClosed(StorageError):
    """The log was closed or has failed, and takes no more calls. Open it again."""

    retriable: ClassVar[bool] = True

    def __init__(self, path: object, reason: str = "it was closed") -> None:
        super().__init__(f"Log {path} takes no calls because {reason}. Open it again.")


def from_os_error(action: str, error: OSError) -> StorageError:
    """The storage error that stands for `error`; `action` completes the sentence "Could not ..."."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(action, error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return DescriptorsExhausted(action, error)
    return StorageIoError(action, error)
