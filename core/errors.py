"""The errors a user of Raylog can meet: one root, Kafka's names and numbers, flags that tell a client what to do.

Clients branch on ``retriable`` and ``refresh_metadata``, never on names. ``from_code`` turns a number from the wire
back into the class. Bugs are a different tree (:mod:`raylog.core.invariants`) and never appear here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar


class RaylogError(Exception):
    """Root of every error that Raylog raises on purpose."""

    code: ClassVar[int] = -1
    """Kafka's error number; -1 = unknown server error; numbers from 1000 on are Raylog's own."""
    retriable: ClassVar[bool] = False
    """True when the same request may succeed later without the caller changing anything."""
    refresh_metadata: ClassVar[bool] = False
    """True when the sender's view of the cluster is out of date."""

    def __init__(self, message: str = "", /, **details: object) -> None:
        """Keep the sentence and the facts behind it; the class's docstring serves when no message is given."""
        self.message = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.details: dict[str, object] = details
        super().__init__(self.message)


class UnknownServerError(RaylogError):
    """The server failed in a way it did not expect; its log has the details."""


class RetriableError(RaylogError):
    """Root of the errors after which the same request may succeed."""

    retriable = True


class StaleMetadataError(RetriableError):
    """Root of the errors that say: fetch metadata, then try again."""

    refresh_metadata = True


class OffsetOutOfRange(RaylogError):
    """The asked offset is outside the partition's log."""

    code = 1


class LogTruncation(OffsetOutOfRange):
    """Records that this consumer has read are not in the partition any more: it was elected uncleanly (KIP-320).

    Raised with ``auto_offset_reset="none"``. Details: ``position``, where reading would have gone on, and
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


class NotLeaderOrFollower(StaleMetadataError):
    """This replica is not the leader of the partition."""

    code = 6


class RequestTimedOut(RetriableError):
    """The request was not finished within its time."""

    code = 7


class RecordTooLarge(RaylogError):
    """The record or batch is larger than the configured maximum."""

    code = 10


class OffsetMetadataTooLarge(RaylogError):
    """The note beside a committed offset is larger than the coordinator keeps; commit a shorter one."""

    code = 12


class CoordinatorLoadInProgress(RetriableError):
    """The coordinator is still reading its log."""

    code = 14


class CoordinatorNotAvailable(StaleMetadataError):
    """The coordinator is not available at the moment."""

    code = 15


class NotCoordinator(StaleMetadataError):
    """This is not the coordinator of the group."""

    code = 16


class InvalidTopic(RaylogError):
    """The topic name is not legal."""

    code = 17


class NotEnoughReplicas(RetriableError):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was written."""

    code = 19


class NotEnoughReplicasAfterAppend(RetriableError):
    """The record was written, but to fewer in-sync replicas than ``min.insync.replicas``."""

    code = 20


class IllegalGeneration(RaylogError):
    """The generation of the member is not the group's current one."""

    code = 22


class InconsistentGroupProtocol(RaylogError):
    """The member supports no assignor that the other members of the group support."""

    code = 23


class InvalidGroupId(RaylogError):
    """The group id is not legal."""

    code = 24


class UnknownMemberId(RaylogError):
    """The group does not know this member."""

    code = 25


class InvalidSessionTimeout(RaylogError):
    """The session timeout is outside the range that the coordinator accepts."""

    code = 26


class RebalanceInProgress(RetriableError):
    """The group is rebalancing; the member has to join again."""

    code = 27


class InvalidTimestamp(RaylogError):
    """The record's timestamp is too far from the broker's clock."""

    code = 32


class UnsupportedVersion(RaylogError):
    """The other side's release does not know this method, record or feature."""

    code = 35


class TopicAlreadyExists(RaylogError):
    """A topic of this name exists."""

    code = 36


class InvalidPartitions(RaylogError):
    """The number of partitions is not legal."""

    code = 37


class InvalidReplicationFactor(RaylogError):
    """The replication factor is not legal for the brokers there are."""

    code = 38


class InvalidReplicaAssignment(RaylogError):
    """A partition cannot be moved to the brokers that were named."""

    code = 39


class InvalidConfig(RaylogError):
    """A configuration key or value is not legal."""

    code = 40


class NotController(StaleMetadataError):
    """The controller is not reachable, or not yet the controller."""

    code = 41


class ClusterAuthorizationFailed(RaylogError):
    """The secret or token that this client proved does not entitle it to this request."""

    code = 31


class InvalidRequest(RaylogError):
    """The request makes no sense to the server."""

    code = 42


class OutOfOrderSequence(RaylogError):
    """A batch of an idempotent producer is missing before this one."""

    code = 45


class DuplicateSequence(RaylogError):
    """This batch was stored before, too long ago to tell its offset."""

    code = 46


class InvalidProducerEpoch(RaylogError):
    """A newer instance of this producer exists."""

    code = 47


class KafkaStorageError(RetriableError):
    """The disk of the partition's leader failed or is full."""

    code = 56
    refresh_metadata = True


class AuthenticationFailed(RaylogError):
    """The cluster's secret was not accepted."""

    code = 58


class NonEmptyGroup(RaylogError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(RaylogError):
    """There is no such group."""

    code = 69


class FencedLeaderEpoch(StaleMetadataError):
    """The sender's leader epoch is older than the partition's."""

    code = 74


class UnknownLeaderEpoch(RetriableError):
    """The sender's leader epoch is newer than this replica knows."""

    code = 75


class UnsupportedCompression(RaylogError):
    """The compression codec is not known here."""

    code = 76


class StaleBrokerEpoch(RaylogError):
    """A newer life of this process is registered; this one has to end."""

    code = 77


class OffsetNotAvailable(RetriableError):
    """The leader does not yet know how far the partition is committed."""

    code = 78


class MemberIdRequired(RaylogError):
    """The member has to join again with the id it was just given."""

    code = 79


class PreferredLeaderNotAvailable(RetriableError):
    """The partition's preferred leader does not run or is not in sync."""

    code = 80


class GroupMaxSizeReached(RaylogError):
    """The group has as many members as it may."""

    code = 81


class FencedInstanceId(RaylogError):
    """Another member uses this static instance id."""

    code = 82


class NoReassignmentInProgress(RaylogError):
    """The partition is not being moved, so that there is nothing to cancel."""

    code = 85


class EligibleLeadersNotAvailable(RetriableError):
    """No replica that may lead the partition runs."""

    code = 83


class ElectionNotNeeded(RaylogError):
    """The partition has the leader that it should have."""

    code = 84


class InvalidRecord(RaylogError):
    """The record is not legal for its topic."""

    code = 87


class InvalidUpdateVersion(RaylogError):
    """The partition changed since the sender looked at it."""

    code = 95


class UnknownTopicId(StaleMetadataError):
    """The topic was deleted, or deleted and created again."""

    code = 100


class InconsistentClusterId(RaylogError):
    """The data directory or the request belongs to another cluster."""

    code = 104


class IneligibleReplica(RaylogError):
    """A replica in the proposed ISR may not be a member of it."""

    code = 107


class ConnectionFailed(StaleMetadataError):
    """The server could not be reached, or the connection broke before the answer came."""

    code = 1001


class BufferExhausted(RaylogError):
    """The producer's buffer stayed full for ``max_block_ms``."""

    code = 1002


class DeliveryTimedOut(RaylogError):
    """The record was not acknowledged within ``delivery_timeout_ms``; it may or may not be stored."""

    code = 1003


class ClientClosed(RaylogError):
    """The client was closed before or during this call."""

    code = 1004


class NoClusterFound(RaylogError):
    """No Raylog cluster runs here; call ``raylog.start()``, or pass ``bootstrap="host:port"``."""

    code = 1005


class NoOffsetForPartition(RaylogError):
    """There is no committed offset and ``auto_offset_reset`` is 'none'."""

    code = 1006


class CommitFailed(RaylogError):
    """The commit was refused because the group has rebalanced; poll more often or raise ``max_poll_interval_ms``."""

    code = 1007


class DataDirectoryError(RaylogError):
    """The data directory cannot be used."""

    code = 1008


class StartFailed(RaylogError):
    """The cluster did not start in time."""

    code = 1009


class RecordDeserializationFailed(RaylogError):
    """A deserializer refused a record; ``seek()`` behind its offset to go on without it."""

    code = 1010


class StopRefused(RaylogError):
    """The broker cannot stop without partitions or the metadata becoming unavailable."""

    code = 1011


def _by_code(root: type[RaylogError]) -> dict[int, type[RaylogError]]:
    found: dict[int, type[RaylogError]] = {}
    for child in root.__subclasses__():
        if child.code != -1:
            found.setdefault(child.code, child)
        found |= _by_code(child)
    return found


_CLASSES: Mapping[int, type[RaylogError]] = _by_code(RaylogError)


def from_code(code: int, message: str = "", details: Mapping[str, object] | None = None) -> RaylogError:
    """Return the error that a server sent as a number; unknown numbers become :class:`UnknownServerError`."""
    kind = _CLASSES.get(code, UnknownServerError)
    facts = {key: value for key, value in (details or {}).items() if isinstance(key, str)}
    return kind(message, **facts)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like ``name``, or None when none is near."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown name: what is unknown, the nearest valid one, and the way to all of them."""
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        return f"Unknown {kind} {name!r}; did you mean {close!r}?"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"Unknown {kind} {name!r}; known are: {listed or 'none'}."


__all__ = sorted(
    name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, RaylogError)
)
