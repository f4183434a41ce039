"""Runs what owns a log of rows: it becomes the log's only writer, reads it, serves, and stores rows in batches.

Groups, transactions, the states of queues and the progress of forwarders are kept in internal topics, one owner for
each partition. An owner is an actor (``server.py``) or a role of the partition's leader (``state_role.py``). Each life
of its :class:`StateRuntime` has a runner of its own (``runner.py``), since an append whose outcome is not known leaves
a machine that may be ahead of the log. May touch: the log, through :class:`OwnedLog`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from raylog.actors.clock import monotonic_ms
from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.stored_rows import EncodedRow, StoredRows
from raylog.base.errors import CoordinatorLoadInProgress, RaylogError
from raylog.base.invariants import InvariantBroken
from raylog.rpc import Request
from raylog.storage.batch.compression import Buffer

logger = logging.getLogger(__name__)

HOLD_MS: Final = 2_000
"""How long a request waits for the end of a load; less than the heartbeat timeout of any client."""
HELD_MAX: Final = 10_000
"""Most requests that wait for the end of a load; more are refused at once."""
REPLAY_TURN: Final = 5_000
"""Rows that are replayed in one turn of the event loop; they take a few hundredths of a second."""
UNREADABLE_NAMED: Final = 20
"""Most unreadable rows whose offsets are logged."""

RunnerT = TypeVar("RunnerT", bound=CoordinatorRunner[Request, EncodedRow])


class OwnedLog(Protocol):
    """One partition of an internal topic, as its owner uses it. Each method raises RaylogError."""

    @property
    def rows_bytes_max(self) -> int:
        """Most bytes of rows in one append."""

    async def begin(self) -> int:
        """Become the only writer. Returns the offset to which the log has to be read: all below it is committed."""

    async def start_offset(self) -> int:
        """Return the first offset that can be read."""

    async def fetch(self, offset: int) -> Buffer:
        """Return committed batches from an offset on; empty = there were none in time."""

    async def append(self, rows: Sequence[EncodedRow]) -> int:
        """Append rows as one batch; returns the offset of the first one once every in-sync replica has them."""


class Owner(Protocol[RunnerT]):
    """What a kind of owner adds to its runtime."""

    @property
    def name(self) -> str:
        """Its name in the process's log."""

    def new_runner(self) -> RunnerT:
        """Return a runner with a new machine; the log's configuration is known by now."""

    def new_rows(self) -> StoredRows:
        """Return what gathers the rows of the log: all of them, or the last one of each key."""

    def serves(self, runner: RunnerT) -> None:
        """Note that the log has been read, and that the runner is about to serve."""

    def stored(self, runner: RunnerT, base_offset: int, size: int) -> None:
        """Note that a batch is stored, just before the replies that waited for it are sent; ``size``: its bytes."""

    def ended(self, runner: RunnerT) -> None:
        """Note that a runner serves no more."""


class StateRuntime(Generic[RunnerT]):
    """The lives of one owner, one after the other. Its process calls :meth:`live` again as long as it shall serve."""

    def __init__(self, log: OwnedLog, owner: Owner[RunnerT]) -> None:
        """Nothing is read before :meth:`live`."""
        self.log = log
        self._owner = owner
        self.runner: RunnerT | None = None
        """None: the log is being read, or nothing is served."""
        self._early: deque[tuple[int, Request]] = deque()
        """Requests that wait for the end of the load, each with the time at which it is refused."""
        self._expiry: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        """Set while rows may wait to be appended, or the life has to end."""
        self._trouble: RaylogError | None = None
        self.rows_unreadable = 0
        """How many rows the last load has skipped because they cannot be read."""

    @property
    def is_busy(self) -> bool:
        """Whether the log is being read, or rows are being stored."""
        return self.runner is None or self._wanted.is_set() or self.runner.has_rows

    async def live(self) -> None:
        """Read the log and serve, until this life has to end: then its cause is raised.

        Raises RaylogError, and whatever a defect raises. What was decided and is not in the log is void.
        """
        self._trouble = None
        self._wanted.clear()
        try:
            runner = await self._load()
            self.runner = runner
            self._owner.serves(runner)
            runner.serve()
            self._hand_over(runner)
            await self._keep_writing(runner)
        finally:
            ended, self.runner = self.runner, None
            if ended is not None:
                ended.end()
                self._owner.ended(ended)

    def fail(self, trouble: RaylogError) -> None:
        """End this life: the state in memory is not valid any more, or nothing shall be served."""
        self._trouble = self._trouble or trouble
        self._wanted.set()

    def wake_writer(self) -> None:
        """Let the waiting rows be appended, together with those of other events in this turn of the loop."""
        self._wanted.set()

    # ------------------------------------------------------------ requests

    def receive(self, request: Request) -> None:
        """Take a request. During a load it waits: it is answered soon, and a refused sender would pause."""
        if self.runner is not None:
            self.runner.receive(request)
        elif len(self._early) >= HELD_MAX:
            request.fail(CoordinatorLoadInProgress())
        else:
            self._early.append((monotonic_ms() + HOLD_MS, request))
            self._await_expiry()

    def refuse_early(self, error: Callable[[], RaylogError]) -> None:
        """Refuse the requests that wait for the end of a load."""
        early, self._early = self._early, deque()
        for _, request in early:
            request.fail(error())

    def _hand_over(self, runner: RunnerT) -> None:
        early, self._early = self._early, deque()
        for _, request in early:
            if not request.is_deserted:
                runner.receive(request)

    def _await_expiry(self) -> None:
        if self._expiry is None and self._early:
            left_s = max(0, self._early[0][0] - monotonic_ms()) / 1000
            self._expiry = asyncio.get_running_loop().call_later(left_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        while self._early and self._early[0][0] <= monotonic_ms():
            self._early.popleft()[1].fail(CoordinatorLoadInProgress())
        self._await_expiry()

    # ------------------------------------------------------------ the log

    async def _load(self) -> RunnerT:
        end = await self.log.begin()
        runner, rows = self._owner.new_runner(), self._owner.new_rows()
        offset = await self.log.start_offset()
        while offset < end:
            behind = rows.gather(await self.log.fetch(offset), end)
            offset = offset if behind is None else behind
            await self._replay(runner, rows)
        rows.complete()
        await self._replay(runner, rows)
        await self._name_unreadable(rows, end)
        logger.info("%s is loaded: %d of %d rows were replayed", self._owner.name, runner.rows_replayed, rows.rows_read)
        return runner

    async def _replay(self, runner: RunnerT, rows: StoredRows) -> None:
        """Replay the rows that are ready. One that this release cannot read is skipped, and noted."""
        for number, (key, value) in enumerate(rows):
            try:
                runner.replay(key, value)
            except InvariantBroken:
                raise
            except Exception as error:  # any error: a foreign row must not keep the owner from serving
                rows.pass_over(error)
            if number % REPLAY_TURN == 0:
                await asyncio.sleep(0)  # so that heartbeats continue

    async def _name_unreadable(self, rows: StoredRows, end: int) -> None:
        """Log which rows were skipped: they have no effect, and everything else is served."""
        while (offset := rows.look_up_from(await self.log.start_offset())) is not None and offset < end:
            rows.look_up(await self.log.fetch(offset), end)
        self.rows_unreadable = len(rows.unreadable)
        for offset, why in sorted(rows.unreadable.items())[:UNREADABLE_NAMED]:
            logger.error(
                "%s: the row at offset %d cannot be read, and is passed over: %.300s", self._owner.name, offset, why
            )

    async def _keep_writing(self, runner: RunnerT) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._trouble is None and (rows := runner.take_batch(self.log.rows_bytes_max)):
                base_offset = await self.log.append(rows)
                self._owner.stored(runner, base_offset, sum(len(key) + len(value or b"") for key, value in rows))
                runner.stored()
            if self._trouble is not None:  # the rows that wait may come from a step that failed halfway
                raise self._trouble
