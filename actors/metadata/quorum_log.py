"""The controller's metadata log on the voters: timers, connections and threads around :class:`QuorumRunner`.

Owned by the controller's shell. ``open`` requests a promise from every running broker, adopts the best log of a
majority of its voters, and returns the metadata in it. From then on a record is committed when a majority of voters has
it on disk. When a controller with a higher epoch appears, this one has to end.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.metadata.quorum_runner import Answered, QuorumRunner
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.actors.transport import dial
from raylog.base.errors import ConnectionFailed, NotController, RaylogError, RequestTimedOut
from raylog.base.ids import ControllerEpoch
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.core.quorum import Proposer, ProposerSettings
from raylog.protocol.message import Message
from raylog.protocol.voter import VOTER_SNAPSHOT
from raylog.rpc import Connection, Reply, Secret

logger = logging.getLogger(__name__)

FindVoter = Callable[[int], Awaitable[tuple[str, int]]]
"""Returns host and port of a broker by id; raises :class:`ConnectionFailed` when it cannot be found right now."""

FindBrokers = Callable[[], Awaitable[Collection[int]]]
"""Returns the ids of the brokers that run now; may raise :class:`ConnectionFailed`."""

TICK_S: Final = 0.05
TICK_AT_REST_S: Final = 0.25
"""Interval between ticks while nothing is under way: each tick wakes the process. Half of the proposer's heartbeat."""
LOOK_S: Final = 0.5
"""Interval at which a candidate looks for brokers."""
CALL_TIMEOUT_S: Final = 2.0
SNAPSHOT_BYTES_PER_S: Final = 4 << 20
"""The lowest transfer rate of a snapshot; a slower transfer times out and is repeated."""


class LogListener(Protocol):
    """The owner of an open log, called on the event loop."""

    def on_committed(self, end: int) -> None:
        """Everything below ``end`` is committed."""

    def on_confirmed(self) -> None:
        """A majority of voters has answered a question: this controller led after it was put."""

    def on_failed(self, reason: str) -> None:
        """No further record can be committed: the controller has to end."""

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """The controller has to append a record with this configuration of voters."""


class QuorumLog:
    """The metadata log, open for one controller."""

    def __init__(
        self,
        voters: Sequence[int],
        *,
        find_voter: FindVoter,
        find_brokers: FindBrokers,
        secret: Secret,
        open_timeout_s: float,
        snapshot_bytes: int,
    ) -> None:
        """``voters``: the founders of a new cluster, which are queried first; the log itself has the current voters.

        ``snapshot_bytes``: how many bytes are appended before a snapshot replaces them.
        """
        self._numbers = tuple(voters)
        self._find_brokers = find_brokers
        self._open_timeout_s = open_timeout_s
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: LogListener | None = None
        self._won: asyncio.Future[tuple[MetadataImage, ControllerEpoch]] | None = None
        self._voters = _Voters(find_voter, secret)
        self._proposer = Proposer(
            self._numbers,
            candidate=uuid.uuid4().hex,
            settings=ProposerSettings(),
            jitter_ms=random.randint(0, 200),
        )
        self.runner = QuorumRunner(self._proposer, self._voters, self, snapshot_bytes=snapshot_bytes)
        self.founding: Mapping[str, str] = {}
        """The voters to record with the first batch, if the log has none yet."""

    async def open(self, listener: LogListener) -> tuple[MetadataImage, ControllerEpoch]:
        """Get promises of a majority, adopt the best log, and return its metadata and the new controller epoch.

        Raises :class:`DataDirectoryError` when too many voters have lost their logs, :class:`NotController` when no
        majority answers in time or a newer controller exists.
        """
        self._listener = listener
        self._won = asyncio.get_running_loop().create_future()
        looking = asyncio.create_task(self._look_for_brokers(), name="looking for brokers")
        self._tasks = [asyncio.create_task(self._keep_ticking(), name="quorum ticks"), looking]
        try:
            async with asyncio.timeout(self._open_timeout_s):
                return await self._won
        except TimeoutError:
            raise NotController(self._without_majority()) from None
        finally:
            looking.cancel()

    def _without_majority(self) -> str:
        voters = sorted(self._proposer.expected or self._numbers)
        missing = sorted(set(voters) - self.runner.answered)
        here = "" if self.runner.has_log else " No broker that answered holds the metadata log."
        return (
            f"No majority of the metadata voters (brokers {_list(voters) or 'unknown'}) promised within "
            f"{self._open_timeout_s:.0f} s; brokers {_list(missing) or 'none'} did not answer. Start them.{here}"
        )

    async def close(self) -> None:
        """Stop writing and disconnect. Uncommitted records may or may not survive."""
        self.runner.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._voters.close()
        if self._won is not None and not self._won.done():
            self._won.cancel()

    async def _keep_ticking(self) -> None:
        while True:
            self.runner.tick()
            await asyncio.sleep(TICK_AT_REST_S if self._proposer.is_settled else TICK_S)

    async def _look_for_brokers(self) -> None:
        while True:
            try:
                found = await self._find_brokers()
            except ConnectionFailed as error:
                logger.debug("the brokers that run are not known: %s", error)
            else:
                self.runner.brokers_found(frozenset(found))
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------ called by the runner

    def on_won(self, image: MetadataImage, epoch: int, founding: Mapping[str, str]) -> None:
        """End the wait of :meth:`open`."""
        self.founding = founding
        if self._won is not None and not self._won.done():
            self._won.set_result((image, ControllerEpoch(epoch)))

    def on_committed(self, end: int) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._listener.on_committed(end)

    def on_confirmed(self) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._listener.on_confirmed()

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """Pass it on."""
        if self._listener is not None:
            self._listener.on_voters(voters)

    def on_failed(self, error: Exception) -> None:
        """Raise it in :meth:`open`, or pass it on."""
        if self._won is not None and not self._won.done():
            self._won.set_exception(error)
        elif self._listener is not None:
            self._listener.on_failed(str(error))


class _Voters:
    """The runner's ports under asyncio: connections to voters, and a task for each call."""

    def __init__(self, find_voter: FindVoter, secret: Secret) -> None:
        self._find_voter = find_voter
        self._secret = secret
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        return monotonic_ms()

    def wall_ms(self) -> int:
        return wall_ms()

    def call(self, voter: int, method: str, args: Message, payload: bytes, answered: Answered) -> None:
        self._spawn(self._answer(voter, method, args, payload, CALL_TIMEOUT_S, answered))

    def send_snapshot(self, voter: int, args: Message, snapshot: MetadataSnapshot, answered: Answered) -> None:
        self._spawn(self._send_snapshot(voter, args, snapshot, answered))

    def encode_snapshot(
        self, records: Sequence[MetadataRecord], end: int, epoch: int, taken: Callable[[MetadataSnapshot], None]
    ) -> None:
        self._spawn(self._encode(records, end, epoch, taken))

    async def close(self) -> None:
        """End every call and disconnect; no callback is called afterwards."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close("the controller stops")
        self._connections.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _encode(
        self, records: Sequence[MetadataRecord], end: int, epoch: int, taken: Callable[[MetadataSnapshot], None]
    ) -> None:
        taken(await asyncio.to_thread(MetadataSnapshot.of, records, end, epoch))

    async def _send_snapshot(self, voter: int, args: Message, snapshot: MetadataSnapshot, answered: Answered) -> None:
        payload = await asyncio.to_thread(snapshot.to_bytes)
        timeout_s = CALL_TIMEOUT_S + len(payload) / SNAPSHOT_BYTES_PER_S
        await self._answer(voter, VOTER_SNAPSHOT.name, args, payload, timeout_s, answered)

    async def _answer(
        self, voter: int, method: str, args: Message, payload: bytes, timeout_s: float, answered: Answered
    ) -> None:
        answered(await self._call(voter, method, args, payload, timeout_s))

    async def _call(self, voter: int, method: str, args: Message, payload: bytes, timeout_s: float) -> Reply | None:
        """Return a voter's reply; None = no reply."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connections.get(voter)
                if connection is None or connection.is_closed:
                    host, port = await self._find_voter(voter)
                    connection = await dial(host, port, secret=self._secret, timeout_s=CALL_TIMEOUT_S)
                    self._connections[voter] = connection
                return await connection.call(method, args, payload, timeout_s=timeout_s)
        except (RaylogError, ConnectionFailed, OSError, TimeoutError) as error:
            logger.debug("voter %d did not answer %s: %s", voter, method, error)
            silent = self._connections.pop(voter, None) if isinstance(error, RequestTimedOut | TimeoutError) else None
            if silent is not None:  # after a network failure, a new connection works long before the old one does
                silent.abort(f"{method} was not answered in time")
            return None


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
