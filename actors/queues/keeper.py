"""The shell of the keeper: a role of the leader of ``__share_state``, which stores the states of queues.

All changes that come in one turn of the event loop go into one batch. When an append fails, its outcome is not known:
the state machine is dropped and loaded from the log again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, Final

import msgspec

from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.state_log import EncodedRow, encoded_row
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.role import Role
from raylog.core.config import TopicConfig
from raylog.core.errors import NotLeaderOrFollower, RaylogError
from raylog.core.invariants import InvariantBroken
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
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers
from raylog.storage.batch.records import decode_batch, encode_batch
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
HEAD_BYTES: Final = 128
APPEND_TIMEOUT_MS: Final = 10_000
AGAIN_S: Final = 0.1
KEPT_BYTES: Final = 24 * 1024 * 1024
"""Size of the log above which a snapshot is written, i.e. every queue whole, so that earlier rows can be deleted."""
SNAPSHOT_EACH_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are written between two snapshots, at least."""

_decoder = msgspec.msgpack.Decoder()
_Runner = CoordinatorRunner[Any, EncodedRow]


class KeeperRole(Role):
    """The keeper in one leader epoch."""

    kind = "share-state"
    requests: ClassVar[frozenset[type[Message]]] = frozenset(
        {ReadShareStateRequest, WriteShareStateRequest, ListShareStatesRequest, DeleteShareStateRequest}
    )

    def __init__(self, host: RoleHost) -> None:
        super().__init__(host)
        self._runner: _Runner | None = None
        self.machine = KeeperMachine()
        self._early: list[Request] = []
        self._wanted = asyncio.Event()
        self._kept_bytes = KEPT_BYTES
        self._written_bytes = 0
        self._snapshot_first = -1
        """First offset of the snapshot that is being written; -1 = none."""
        self._snapshot_wanted = False
        self._unreadable = 0
        """Rows that the last load skipped because they could not be read."""
        self._is_broken = False
        """Whether a defect has made the state in memory invalid."""

    def begin(self) -> None:
        """Load the states, then serve."""
        self.host.spawn(self._live(), "share state")

    async def end(self) -> None:
        """Refuse the requests that wait."""
        self._refuse_all()

    @property
    def is_busy(self) -> bool:
        """Whether states are being loaded or written."""
        return self._runner is None or self._wanted.is_set()

    def figures(self) -> dict[str, int]:
        """Return the number of queues, and of rows that could not be read."""
        return {"share_states": len(self.machine.queues), "unreadable": self._unreadable}

    def receive(self, request: Request, args: Any) -> None:
        """Take a request of a queue's leader, or of an administrator. Raises NotLeaderOrFollower."""
        if args.current_leader_epoch not in (-1, self.host.leader_epoch):
            raise NotLeaderOrFollower(f"{self.host.partition} has leader epoch {self.host.leader_epoch}; look it up.")
        request.args = args
        if self._runner is None:
            self._early.append(request)
        else:
            self._runner.receive(request)

    # ------------------------------------------------------------ life

    async def _live(self) -> None:
        while not self.host.is_over:
            try:
                runner = await self._load()
                self._runner = runner
                runner.serve()
                early, self._early = self._early, []
                for request in early:
                    runner.receive(request)
                await self._keep_writing(runner)
            except RaylogError as trouble:
                logger.warning("%s: the states of queues are loaded again: %s", self.host.partition, trouble)
            self._drop()
            await asyncio.sleep(AGAIN_S)

    def _drop(self) -> None:
        if self._runner is not None:
            self._runner.end()
            self._runner = None
        self._snapshot_first, self._snapshot_wanted, self._is_broken = -1, False, False

    def _refuse_all(self) -> None:
        self._drop()
        early, self._early = self._early, []
        for request in early:
            request.fail(NotLeaderOrFollower(f"{self.host.partition} leads no longer; look its leader up."))

    async def _load(self) -> _Runner:
        self.machine = KeeperMachine()
        self._unreadable = 0
        effects = {kp.SnapshotStored: self._snapshot_stored}
        runner = _Runner(self.machine, self, _event_for, effects)
        end = self.host.log.log_end_offset
        offset = self.host.log.log_start_offset
        while offset < end:
            _, records = await self.host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=500)
            for place, header in iter_headers(records):
                if not header.is_control:
                    self._replay(runner, records, place, header)
                offset = header.next_offset
                await asyncio.sleep(0)  # lets heartbeats be sent meanwhile
        logger.info("%s: the states of %d queues are loaded", self.host.partition, len(self.machine.queues))
        return runner

    def _replay(self, runner: _Runner, records: bytes, place: int, header: BatchHeader) -> None:
        """Replay the rows of a batch. Rows that cannot be read are counted, logged and skipped."""
        try:
            columns = decode_batch(records, place, header, verify=False)
        except CorruptBatch as error:
            check_crc(records, place, header)  # bytes changed on the disk: raises, so that all is loaded again
            self._pass_over(header.base_offset, error)
            return
        values = columns.values or [None] * header.record_count
        for offset, key, value in zip(columns.offsets, columns.keys or (), values, strict=False):
            if key is None:
                continue
            try:
                runner.replay(_decoder.decode(key), None if value is None else _decoder.decode(value))
            except InvariantBroken:
                raise
            except Exception as error:  # a row that the keeper has not written may raise anything
                self._pass_over(offset, error)

    def _pass_over(self, offset: int, error: Exception) -> None:
        self._unreadable += 1
        logger.error(
            "%s: the row at offset %d cannot be read, and is passed over: %.300r", self.host.partition, offset, error
        )

    async def _keep_writing(self, runner: _Runner) -> None:
        bytes_max = self.row_bytes_max()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while not self._is_broken and (rows := runner.take_batch(bytes_max)):
                batch = encode_batch(
                    [key for key, _ in rows], [value for _, value in rows], [self.wall_ms()] * len(rows)
                )
                reply = await self.host.produce(batch, timeout_ms=APPEND_TIMEOUT_MS)
                self._written_bytes += len(batch)
                if self._snapshot_wanted and self._snapshot_first < 0:
                    self._snapshot_first = reply.base_offset
                runner.stored()
            if self._is_broken:  # the rows that wait may be those of an unfinished step
                raise NotLeaderOrFollower("a defect has voided the states")
            self._begin_snapshot(runner)

    def _begin_snapshot(self, runner: _Runner) -> None:
        is_long = self.host.log.size_bytes > self._kept_bytes and self._written_bytes > SNAPSHOT_EACH_BYTES
        if is_long and not self._snapshot_wanted:
            self._snapshot_wanted, self._written_bytes = True, 0
            runner.feed(kp.SnapshotDue(cause="long log", now_ms=self.now_ms()))

    def _snapshot_stored(self, effect: kp.SnapshotStored) -> None:
        before, self._snapshot_first, self._snapshot_wanted = self._snapshot_first, -1, False
        if before > 0:
            self.host.spawn(self._delete(before), "share state deletes")

    async def _delete(self, before: int) -> None:
        try:
            await self.host.delete_records(before)
        except RaylogError as trouble:
            logger.info("%s: earlier rows stay until the next snapshot: %s", self.host.partition, trouble)

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the time of a monotonic clock, in milliseconds."""
        return self.host.now_ms()

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since 1970."""
        return self.host.wall_ms()

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        """Return a row as it is stored, and its size in bytes."""
        return encoded_row(key, value)

    def row_bytes_max(self) -> int:
        """Return the size of the largest row that the log takes, in bytes."""
        return TopicConfig.from_dict(self.host.config).max_message_bytes - HEAD_BYTES

    def wake_writer(self) -> None:
        """Append the rows that wait, soon."""
        self._wanted.set()

    def propose_sleep(self) -> None:
        """Do nothing: a role sleeps with its partition."""

    def fatal(self, reason: str) -> None:
        """Load the states again: a step may be half done, and only the log has the valid state."""
        logger.error("%s: %s", self.host.partition, reason)
        self._is_broken = True
        self._wanted.set()


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
