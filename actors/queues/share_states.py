"""The shell of the states of queues: a role of the leader of ``__share_state``.

The log has changes and, from time to time, a snapshot of every queue, so that the rows before can be deleted.
"""

from __future__ import annotations

import logging
from typing import ClassVar, Final

from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.state_role import StateRole
from raylog.actors.coordinators.stored_rows import EncodedRow
from raylog.actors.received import received_by_role
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import RaylogError
from raylog.core.queues.share_states import ShareStateMachine, SnapshotDue, SnapshotStored
from raylog.protocol.message import Message
from raylog.protocol.queues import SHARE_STATE_METHODS
from raylog.rpc import Request

logger = logging.getLogger(__name__)

KEPT_BYTES: Final = 24 * 1024 * 1024
"""Size of the log above which a snapshot is written, i.e. every queue whole, so that earlier rows can be deleted."""
SNAPSHOT_EACH_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are written between two snapshots, at least."""

_Runner = CoordinatorRunner[Request, EncodedRow]


class ShareStateRole(StateRole[_Runner]):
    """The states of all queues in one leader epoch."""

    kind = "share-state"
    requests: ClassVar[frozenset[type[Message]]] = frozenset(method.request for method in SHARE_STATE_METHODS)

    def __init__(self, host: RoleHost) -> None:
        """Nothing is read before :meth:`begin`."""
        super().__init__(host)
        self.machine = ShareStateMachine()
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
        self.machine = ShareStateMachine()
        return _Runner(self.machine, self, received_by_role, {SnapshotStored: self._snapshot_stored})

    def stored(self, runner: _Runner, base_offset: int, size: int) -> None:
        """Note that a batch is stored: it may be the first one of a snapshot, or make one due."""
        self._written_bytes += size
        if self._snapshot_wanted:
            if self._snapshot_first < 0:
                self._snapshot_first = base_offset
        elif self.host.log.size_bytes > self._kept_bytes and self._written_bytes > SNAPSHOT_EACH_BYTES:
            self._snapshot_wanted, self._written_bytes = True, 0
            runner.feed(SnapshotDue(cause="long log", now_ms=self.now_ms()))

    def ended(self, runner: _Runner) -> None:
        """Note that a runner serves no more: its snapshot may be incomplete."""
        self._snapshot_first, self._snapshot_wanted = -1, False

    # ------------------------------------------------------------ snapshots

    def _snapshot_stored(self, effect: SnapshotStored) -> None:
        before, self._snapshot_first, self._snapshot_wanted = self._snapshot_first, -1, False
        if before > 0:
            self.host.spawn(self._delete(before), "share state deletes")

    async def _delete(self, before: int) -> None:
        try:
            await self.host.delete_records(before)
        except RaylogError as trouble:
            logger.info("%s: earlier rows stay until the next snapshot: %s", self.host.partition, trouble)
