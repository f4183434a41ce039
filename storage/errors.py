"""Errors that only storage raises, and the messages of those that it shares with clients.

Each is a subclass of the error that clients receive: a full disk is a `KafkaStorageError` to a producer, a batch that
cannot be read a `CorruptMessage`. Pure.
"""

from __future__ import annotations

import errno

from raylog.base.errors import (
    CorruptMessage,
    DataDirectoryError,
    InvalidRecord,
    KafkaStorageError,
    OffsetOutOfRange,
    RaylogError,
    UnsupportedCompression,
)


def out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRange:
    """The error for an offset that a log from `start` to `end` (exclusive) does not hold."""
    return OffsetOutOfRange(
        f"Offset {offset} is outside the log, which runs from {start} to {end}. Reset the position.",
        start=start,
        end=end,
    )


def unsupported(codec: object, hint: str = "Use none, gzip, snappy, lz4 or zstd") -> UnsupportedCompression:
    """The error for an unknown codec, or one whose library is not installed."""
    return UnsupportedCompression(f"Compression {codec!r} is not supported. {hint}.")


def refused(reason: str) -> InvalidRecord:
    """The error for a batch whose header has values that no producer may write."""
    return InvalidRecord(f"Record batch is refused: {reason}.")


class CorruptBatch(CorruptMessage):
    """The bytes are not a whole, valid record batch. A producer may send the batch again."""

    def __init__(self, reason: str, *, position: int = 0) -> None:
        super().__init__(f"Record batch at byte {position} is corrupt: {reason}. Send or fetch it again.")
        self.reason = reason
        self.position = position


class BodyTooLarge(CorruptBatch):
    """A body has more bytes than are accepted, when it is decompressed; nothing else is wrong with it."""


class StorageIoError(KafkaStorageError):
    """The operating system refused a read, a write or a sync."""

    def __init__(self, action: str, error: OSError) -> None:
        super().__init__(f"Could not {action}: {error}. Check the disk and the kernel log.")


class DiskFull(KafkaStorageError):
    """No space, or no quota, is left. Nothing of the append was kept; the log stays readable and writable."""

    def __init__(self, action: str, error: OSError) -> None:
        self.what = f"Could not {action}: {error}."
        super().__init__(f"{self.what} Free some space, lower retention, or add a broker.")


class NoRoomToClean(DiskFull):
    """A cleaner had no space for what it writes beside the log. The log holds what it held."""

    def __init__(self, cause: DiskFull) -> None:
        self.what = cause.what
        # Retention is no help: a topic that is only compacted has none.
        KafkaStorageError.__init__(
            self,
            f"{cause.what} A cleaning needs space for the segments that it writes, before it removes the old ones. "
            "Free some space on this disk, or move partitions to another broker (raylog topic reassign); the log is "
            "unchanged, and is cleaned once there is room.",
        )


class TooManyToClean(KafkaStorageError):
    """A log has more records than one cleaning can number, and they do not end where a segment does."""

    def __init__(self, path: object, records: int) -> None:
        super().__init__(
            f"The log up to {path} has more than {records} records, so that nothing of it is cleaned. Create the topic "
            "again with more partitions, and copy the records; or lower segment.bytes, if this is the first segment."
        )


class DescriptorsExhausted(KafkaStorageError):
    """The process has no file descriptor left. Nothing was lost; the same call succeeds when one is free."""

    def __init__(self, action: str, error: OSError) -> None:
        super().__init__(
            f"Could not {action}: {error}. The disk is not at fault: raise the descriptor limit (ulimit -n), "
            "or close connections."
        )


class NotDurable(KafkaStorageError):
    """A file was replaced, but its folder could not be synced: the new content is readable, and may be lost."""

    def __init__(self, path: object, cause: RaylogError) -> None:
        super().__init__(f"{path} was written, but may be lost with the machine's power: {cause}")


class LogDamaged(KafkaStorageError):
    """Bytes that had been synced are wrong. They are never cut silently: rebuild this replica from its peers."""

    def __init__(self, path: object, position: int, offset: int, reason: str, *, next_offset: int = -1) -> None:
        """`next_offset`: the first offset after the damage that can be read again; -1 = not looked for."""
        super().__init__(
            f"{path} is damaged at byte {position} (offset {offset}): {reason}. "
            "These bytes had been synced, so nothing was changed; rebuild this replica from its peers."
        )
        self.path = str(path)
        self.position = position
        self.offset = offset
        self.reason = reason
        self.next_offset = next_offset


class DirectoryInUse(DataDirectoryError):
    """Another live process holds the data directory."""

    def __init__(self, path: object, pid: int, command: str, since: str, host: str) -> None:
        super().__init__(
            f"{path} is in use by process {pid} ({command}) on {host} since {since}. "
            "Stop that process, then try again; or choose another directory."
        )
        self.pid = pid
        self.command = command
        self.since = since
        self.host = host


class WrongDirectory(DataDirectoryError):
    """The data directory belongs to another broker or cluster."""

    def __init__(self, path: object, field: str, found: str, expected: str) -> None:
        super().__init__(
            f"Data directory {path} has {field}={found}, but this broker has {field}={expected}. "
            "Give this broker its own directory, or start it with the identity of that directory."
        )
        self.field = field
        self.found = found
        self.expected = expected


class WrongTopicId(DataDirectoryError):
    """The partition folder holds another topic of the same name, deleted since. Delete the folder."""

    def __init__(self, path: object, found: str, expected: str) -> None:
        super().__init__(
            f"{path} holds topic id {found}, but topic id {expected} was requested. "
            "The topic was deleted and created again; remove the old folder."
        )
        self.found = found
        self.expected = expected


class LogClosed(KafkaStorageError):
    """The log was closed or has failed, and refuses further calls. Open it again."""

    def __init__(self, path: object, reason: str = "it was closed") -> None:
        super().__init__(f"Log {path} takes no calls because {reason}. Open it again.")


def from_os_error(action: str, error: OSError) -> KafkaStorageError:
    """The storage error for `error`; `action` completes the sentence "Could not ..."."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(action, error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return DescriptorsExhausted(action, error)
    return StorageIoError(action, error)
