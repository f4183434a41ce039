"""The shell of the keeper: a role of the leader of ``__share_state``, which stores the states of queues.

The log has changes and, from time to time, a snapshot of every queue, so that the rows before can be deleted.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Final

from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.state_role import StateRole
from raylog.actors.coordinators.stored_rows import EncodedRow
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import RaylogError
from raylog.core.queues import keeper as kp
from raylog.core.queues.keeper import KeeperMachine, QueueKey
from raylog.core.queues.records import QueueChange
from raylog.protocol.message import Message
from raylog.protocol.queues import (
    DeleteShareStateRequest,
    ListShareStatesRequest,
    ReadShareStateRequest,
    WriteShareStateRequest,
)
from raylog.rpc import Request

logger = logging.getLogger(__name__)

KEPT_BYTES: Final = 24 * 1024 * 1024
"""Size of the log above which a snapshot is written, i.e. every queue whole, so that earlier rows can be deleted."""
SNAPSHOT_EACH_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are written between two snapshots, at least."""

_Runner = CoordinatorRunner[Request, EncodedRow]


class ShareStateRole(StateRole[_Runner]):
    """The keeper in one leader epoch."""

    kind = "share-state"
    requests: ClassVar[frozenset[type[Message]]] = frozenset(
        {ReadShareStateRequest, WriteShareStateRequest, ListShareStatesRequest, DeleteShareStateRequest}
    )

    def __init__(self, host: RoleHost) -> None:
        """Nothing is read before :meth:`begin`."""
        super().__init__(host)
        self.machine = KeeperMachine()
        self._kept_bytes = KEPT_BYTES
        self._written_bytes = 0
        self._snapshot_first = -1
        """First offset of the snapshot that is being written; -1 = none."""
        self._snapshot_wanted = False

    def figures(self) -> dict[str, int]:
        """Return the number of queues, and of rows that could not be read."""
        return {"share_states": len(self.machine.queues), "unreadable": self.runtime.rows_unreadable}

    # ------------------------------------------------------------ for the runtime

    def new_runner(self) -> _Runner:
        """Return a runner with a new machine."""
        self.machine = KeeperMachine()
        return _Runner(self.machine, self, _event_for, {kp.SnapshotStored: self._snapshot_stored})

    def stored(self, runner: _Runner, base_offset: int, size: int) -> None:
        """Note that a batch is stored: it may be the first one of a snapshot, or make one due."""
        self._written_bytes += size
        if self._snapshot_wanted:
            if self._snapshot_first < 0:
                self._snapshot_first = base_offset
        elif self.host.log.size_bytes > self._kept_bytes and self._written_bytes > SNAPSHOT_EACH_BYTES:
            self._snapshot_wanted, self._written_bytes = True, 0
            runner.feed(kp.SnapshotDue(cause="long log", now_ms=self.now_ms()))

    def ended(self, runner: _Runner) -> None:
        """Note that a runner serves no more: its snapshot may be incomplete."""
        self._snapshot_first, self._snapshot_wanted = -1, False

    # ------------------------------------------------------------ snapshots

    def _snapshot_stored(self, effect: kp.SnapshotStored) -> None:
        before, self._snapshot_first, self._snapshot_wanted = self._snapshot_first, -1, False
        if before > 0:
            self.host.spawn(self._delete(before), "share state deletes")

    async def _delete(self, before: int) -> None:
        try:
            await self.host.delete_records(before)
        except RaylogError as trouble:
            logger.info("%s: earlier rows stay until the next snapshot: %s", self.host.partition, trouble)


def _event_for(request: Request, number: int, now_ms: int) -> kp.Event:
    args: Any = request.args
    match args:
        case ReadShareStateRequest():
            return kp.ReadState(
                cause=request.method,
                now_ms=now_ms,
                request=number,
                key=QueueKey(args.group_id, args.queue_topic_id, args.queue_partition),
                topic=args.queue_topic,
                leader_epoch=args.leader_epoch,
                partitions=args.queue_partitions,
            )
        case WriteShareStateRequest():
            return kp.WriteState(
                cause=request.method,
                now_ms=now_ms,
                request=number,
                key=QueueKey(args.group_id, args.queue_topic_id, args.queue_partition),
                leader_epoch=args.leader_epoch,
                state_epoch=args.state_epoch,
                version=args.version,
                change=QueueChange.from_wire(args.change),
            )
        case ListShareStatesRequest():
            return kp.ListStates(cause=request.method, now_ms=now_ms, request=number, group=args.group_id)
        case _:
            return kp.DeleteState(
                cause=request.method,
                now_ms=now_ms,
                request=number,
                key=QueueKey(args.group_id, args.queue_topic_id, args.queue_partition),
            )
