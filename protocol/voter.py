"""Methods of a metadata voter, at the endpoint of its broker, for the controller, which writes the metadata log.

An epoch here is a controller epoch; ``candidate`` identifies the controller process that claims it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raylog.protocol.message import Int32, Int64, Message
from raylog.protocol.method import CLUSTER, AnyMethod, Method


class EpochStart(Message, frozen=True):
    """An epoch, and the offset of its first record."""

    epoch: Int32
    start_offset: Int64


class VoterPromiseRequest(Message, frozen=True):
    """Promise a candidate to refuse lower epochs, and describe the log."""

    epoch: Int32
    candidate: str


class VoterPromiseReply(Message, frozen=True):
    """``epochs``, ``start`` and ``end`` describe the voter's log; offsets below ``start`` are in its snapshot."""

    granted: bool
    promised: Int64
    """The highest epoch that the voter has promised."""
    identity: str
    """Identity of this copy of the log; a copy that was lost is replaced by one with another identity."""
    epochs: Sequence[EpochStart]
    start: Int64
    end: Int64
    holds_data: bool
    """Whether the broker keeps partitions of topics."""
    founder: bool
    """Whether the start that creates the cluster has chosen this broker."""


class VoterAppendRequest(Message, frozen=True):
    """Append the batches in the payload at offset ``start``, unless the logs differ before it; no batches = heartbeat.

    ``previous_epoch``: that of the record before ``start``. ``committed``: the offset below which all is committed.
    """

    epoch: Int32
    candidate: str
    start: Int64
    previous_epoch: Int32
    committed: Int64


class VoterAppendReply(Message, frozen=True):
    """``matched``: the logs are the same below this offset; None = they differ before ``start``, or not allowed."""

    promised: Int64
    identity: str
    matched: Int64 | None
    epochs: Sequence[EpochStart]
    end: Int64
    start: Int64


class VoterReadRequest(Message, frozen=True):
    """Read the log from ``offset`` on, as the candidate that was promised ``epoch``."""

    epoch: Int32
    candidate: str
    offset: Int64


class VoterReadReply(Message, frozen=True):
    """The payload has the batches, or the snapshot when ``offset`` lies below ``start``."""

    allowed: bool
    promised: Int64
    end: Int64
    start: Int64


class VoterSnapshotRequest(Message, frozen=True):
    """Take the snapshot in the payload in place of the records that it stands for."""

    epoch: Int32
    candidate: str


VOTER_PROMISE: Final = Method("voter_promise", VoterPromiseRequest, VoterPromiseReply, CLUSTER)
VOTER_APPEND: Final = Method("voter_append", VoterAppendRequest, VoterAppendReply, CLUSTER)
VOTER_READ: Final = Method("voter_read", VoterReadRequest, VoterReadReply, CLUSTER)
VOTER_SNAPSHOT: Final = Method("voter_snapshot", VoterSnapshotRequest, VoterAppendReply, CLUSTER)

VOTER_METHODS: Final[tuple[AnyMethod, ...]] = (VOTER_PROMISE, VOTER_APPEND, VOTER_READ, VOTER_SNAPSHOT)
