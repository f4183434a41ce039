"""Errors of one partition: its log, its leader and the batches of its producers. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError, StaleMetadataError


class OffsetOutOfRange(RaylogError):
    """The requested offset is outside the partition's log."""

    code = 1


class LogTruncation(OffsetOutOfRange):
    """Records that this consumer has read are not in the partition any more: it was elected uncleanly (KIP-320).

    Raised with ``auto_offset_reset="none"``. Details: ``position``, where reading would have continued, and
    ``divergent_offset``, from which on the partition holds other records; seek to one of them, or elsewhere.
    """

    code = 1012


class CorruptMessage(RetriableError):
    """A record batch failed its checksum."""

    code = 2


class UnknownTopicOrPartition(StaleMetadataError):
    """This topic or partition does not exist here."""

    code = 3


class LeaderNotAvailable(StaleMetadataError):
    """The partition has no leader at the moment."""

    code = 5


class StillStarting(LeaderNotAvailable):
    """The topic or its new partitions exist, and not all of them have a leader that every broker knows of yet.

    Nothing has to be repeated. ``details``: ``topic``, ``led`` and ``partitions``. Raised by clients alone.
    """


class NotLeaderOrFollower(StaleMetadataError):
    """This replica is not the leader of the partition."""

    code = 6


class RequestTimedOut(RetriableError):
    """The request was not finished within its time."""

    code = 7


class RecordTooLarge(RaylogError):
    """The record or batch is larger than the configured maximum."""

    code = 10


class NotEnoughReplicas(RetriableError):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was written."""

    code = 19


class NotEnoughReplicasAfterAppend(RetriableError):
    """The record was written, but to fewer in-sync replicas than ``min.insync.replicas``."""

    code = 20


class InvalidTimestamp(RaylogError):
    """The record's timestamp is too far from the broker's clock."""

    code = 32


class OutOfOrderSequence(RaylogError):
    """A batch of an idempotent producer is missing before this one."""

    code = 45


class TooManyProducers(RetriableError):
    """The partition remembers as many producers as it may, and none of them was idle for long; try again later."""

    code = 1047


class DuplicateSequence(RaylogError):
    """This batch was stored before, too long ago to report its offset."""

    code = 46


class InvalidProducerEpoch(RaylogError):
    """A newer instance of this producer exists."""

    code = 47


class KafkaStorageError(RetriableError):
    """The disk of the partition's leader failed or is full."""

    code = 56
    refresh_metadata = True


class FencedLeaderEpoch(StaleMetadataError):
    """The sender's leader epoch is older than the partition's."""

    code = 74


class UnknownLeaderEpoch(RetriableError):
    """The sender's leader epoch is newer than this replica knows."""

    code = 75


class UnsupportedCompression(RaylogError):
    """The compression codec is not known here."""

    code = 76


class OffsetNotAvailable(RetriableError):
    """The leader does not yet know how far the partition is committed."""

    code = 78


class InvalidRecord(RaylogError):
    """The record is not legal for its topic."""

    code = 87


class UnknownTopicId(StaleMetadataError):
    """The topic was deleted, or deleted and created again."""

    code = 100
