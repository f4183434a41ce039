"""Methods of the partition of ``__forwarding``: its leader keeps what forwarders have decided, and redrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from raylog.protocol.message import Empty, Int32, Int64, Message, Settings
from raylog.protocol.method import CLIENT, CLUSTER, AnyMethod, Method


class LoadForwarderRequest(Message, frozen=True):
    """Get what a forwarder has stored last; from then on owners of an earlier epoch are refused.

    ``owner_epoch``: the leader epoch of the partition whose records are forwarded.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    forwarder: str
    owner_epoch: Int32


class LoadForwarderReply(Message, frozen=True):
    """``progress`` empty: nothing was stored."""

    has_bytes: ClassVar[bool] = True
    progress: bytes


class SaveForwarderRequest(Message, frozen=True):
    """Store what a forwarder has decided; answered when every in-sync replica has it."""

    has_bytes: ClassVar[bool] = True
    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    forwarder: str
    owner_epoch: Int32
    progress: bytes


class StartRedriveRequest(Message, frozen=True):
    """Send on the dead letters that a topic holds now.

    ``to``: a topic; empty = each goes to the topic it came from. ``where``: only those with these values. ``rate``:
    records per second of each partition; 0 = no limit. ``from_start``: including those that an earlier redrive has
    handled.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    topic: str
    to: str
    where: Settings[str]
    rate: Int64
    from_start: bool


class StartRedriveReply(Message, frozen=True):
    """The redrive's number."""

    redrive: Int64


class ListRedrivesRequest(Message, frozen=True):
    """List redrives: those that run, and those that ended in the last seven days.

    ``topic``: the topic whose dead letters they send on; empty = any.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    topic: str


class RedrivePartition(Message, frozen=True):
    """How far a redrive is in one partition: from ``start`` up to ``end``; what is below ``position`` is done."""

    partition: Int32
    start: Int64
    position: Int64
    end: Int64
    sent: Int64


class RedriveRow(Message, frozen=True):
    """One redrive. ``state``: ``running``, ``holding`` (a target takes nothing), ``done`` or ``cancelled``.

    Times in milliseconds since 1970; -1 = it has not ended.
    """

    redrive: Int64
    topic: str
    to: str
    where: Mapping[str, str]
    rate: Int64
    state: str
    started_ms: Int64
    ended_ms: Int64
    partitions: Sequence[RedrivePartition]


class ListRedrivesReply(Message, frozen=True):
    """The redrives, by their numbers."""

    redrives: Sequence[RedriveRow]


class CancelRedriveRequest(Message, frozen=True):
    """End a redrive; answered when that is stored. What it has sent stays where it is."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    redrive: Int64


class CancelRedriveReply(Message, frozen=True):
    """``outcome``: ``CANCELLED``, ``ALREADY_ENDED`` or ``NOT_FOUND``."""

    outcome: str


LOAD_FORWARDER: Final = Method("load_forwarder", LoadForwarderRequest, LoadForwarderReply, CLUSTER, waits=True)
SAVE_FORWARDER: Final = Method("save_forwarder", SaveForwarderRequest, Empty, CLUSTER, waits=True)
START_REDRIVE: Final = Method("start_redrive", StartRedriveRequest, StartRedriveReply, CLIENT, waits=True)
LIST_REDRIVES: Final = Method("list_redrives", ListRedrivesRequest, ListRedrivesReply, CLIENT, waits=True)
CANCEL_REDRIVE: Final = Method("cancel_redrive", CancelRedriveRequest, CancelRedriveReply, CLIENT, waits=True)

FORWARDING_METHODS: Final[tuple[AnyMethod, ...]] = (
    LOAD_FORWARDER,
    SAVE_FORWARDER,
    START_REDRIVE,
    LIST_REDRIVES,
    CANCEL_REDRIVE,
)
