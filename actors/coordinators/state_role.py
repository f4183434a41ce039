"""A role that owns the log of its partition: rows are read and appended through the replica in its own process.

Used by the states of queues (``actors/queues/share_states.py``) and the progress of forwarders
(``actors/forwarding/forwarder_states.py``). Each subclass makes the runner of its machine.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic

from raylog.actors.coordinators.runtime import RunnerT, StateRuntime
from raylog.actors.coordinators.stored_rows import EachRow, EncodedRow, StoredRows, encode_rows, encoded_row
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.role import Role
from raylog.base.errors import NotLeaderOrFollower, RaylogError
from raylog.base.ids import LATEST
from raylog.core.configuration.config import TopicConfig
from raylog.rpc import Request

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
READ_WAIT_MS: Final = 500
BATCH_HEAD_BYTES: Final = 128
"""Room for what a batch has besides its rows."""
APPEND_TIMEOUT_MS: Final = 10_000
AGAIN_S: Final = 0.1
"""Pause before the log is read again after a failure."""
COMMITTED_PAUSE_S: Final = 0.02


async def until_committed(host: RoleHost) -> int:
    """Wait until everything that is in the leader's own log now is committed; returns its present end."""
    end = host.log.log_end_offset
    while True:
        found = await host.list_offsets(LATEST)
        if found.offset >= end:
            return end
        await asyncio.sleep(COMMITTED_PAUSE_S)


class OwnPartition:
    """The :class:`~raylog.actors.coordinators.runtime.OwnedLog` of a role: the log of its host's replica."""

    def __init__(self, host: RoleHost) -> None:
        """``host``: the host of the role."""
        self._host = host

    @property
    def rows_bytes_max(self) -> int:
        """Most bytes of rows in one append, by the topic's present configuration."""
        return TopicConfig.from_dict(self._host.config).max_message_bytes - BATCH_HEAD_BYTES

    async def begin(self) -> int:
        """Wait until everything in the log is committed; a leadership is the only writer by itself."""
        return await until_committed(self._host)

    async def start_offset(self) -> int:
        """Return the first offset that can be read."""
        return self._host.log.log_start_offset

    async def fetch(self, offset: int) -> bytes:
        """Return committed batches from an offset on."""
        _, records = await self._host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=READ_WAIT_MS)
        return records

    async def append(self, rows: Sequence[EncodedRow]) -> int:
        """Append rows as one batch; returns the offset of the first one."""
        batch = encode_rows(rows, self._host.wall_ms())
        return (await self._host.produce(batch, timeout_ms=APPEND_TIMEOUT_MS)).base_offset


class StateRole(Role, Generic[RunnerT]):
    """The owner of a log in one leader epoch. It implements the ports of its runner."""

    rows: ClassVar[type[StoredRows]] = EachRow
    """What reads the log: :class:`EachRow`, or ``LiveRows`` if only the last row of a key counts."""

    def __init__(self, host: RoleHost) -> None:
        """Nothing is read before :meth:`begin`."""
        super().__init__(host)
        self.name = str(host.partition)
        self.runtime: StateRuntime[RunnerT] = StateRuntime(OwnPartition(host), self)

    def begin(self) -> None:
        """Read the log, then serve."""
        self.host.spawn(self._live(), self.kind)

    async def end(self) -> None:
        """Refuse the requests that wait for a load; those of the runner were refused when its life ended."""
        self.runtime.refuse_early(self._led_elsewhere)

    @property
    def is_busy(self) -> bool:
        """Whether the log is being read, or rows are being stored."""
        return self.runtime.is_busy

    def receive(self, request: Request, args: Any) -> None:
        """Take a request. Raises NotLeaderOrFollower."""
        if args.current_leader_epoch not in (-1, self.host.leader_epoch):
            raise NotLeaderOrFollower(f"{self.host.partition} has leader epoch {self.host.leader_epoch}; look it up.")
        request.args = args
        self.runtime.receive(request)

    async def _live(self) -> None:
        while not self.host.is_over:
            try:
                await self.runtime.live()
            except RaylogError as trouble:
                logger.warning("%s: the log is read again: %s", self.host.partition, trouble)
            await asyncio.sleep(AGAIN_S)

    def _led_elsewhere(self) -> RaylogError:
        return NotLeaderOrFollower(f"{self.host.partition} leads no longer; look its leader up.")

    # ------------------------------------------------------------ for the runtime

    @abstractmethod
    def new_runner(self) -> RunnerT:
        """Return a runner with a new machine."""

    def new_rows(self) -> StoredRows:
        """Return what reads the log."""
        return self.rows()

    def serves(self, runner: RunnerT) -> None:
        """Note that the log has been read."""

    def stored(self, runner: RunnerT, base_offset: int, size: int) -> None:
        """Note that a batch is stored."""

    def ended(self, runner: RunnerT) -> None:
        """Note that a runner serves no more."""

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
        return self.runtime.log.rows_bytes_max

    def tick_at(self, due_ms: int) -> None:
        """Do nothing: no machine of a role has deadlines."""

    def wake_writer(self) -> None:
        """Append the rows that wait, soon."""
        self.runtime.wake_writer()

    def propose_sleep(self) -> None:
        """Do nothing: a role sleeps with its partition."""

    def fatal(self, reason: str) -> None:
        """Read the log again: a step may be half done, and only the log has the valid state."""
        logger.error("%s: %s", self.host.partition, reason)
        self.runtime.fail(NotLeaderOrFollower("a defect has voided what was in memory"))
