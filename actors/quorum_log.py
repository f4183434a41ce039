"""The metadata log by majority: the proposer's machine, its connections to the voters, and the adopted log in memory.

Owned by the controller's shell. ``open`` asks every broker that runs for a promise, adopts the best log that a majority
of its voters stands behind, and returns what it adds up to; from then on a record is committed when a majority of
voters has it on disk. When a controller of a higher epoch shows up, this one has to end. It keeps its last snapshot and
all batches behind it, to bring voters up that lag, start anew or are about to become voters.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from raylog.actors.clock import monotonic_ms
from raylog.actors.metadata_batches import Batch, split
from raylog.actors.metadata_codec import encoded, image_of
from raylog.actors.metadata_snapshot import MetadataSnapshot
from raylog.actors.transport import dial
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.records import MetadataRecord, VotersEntered
from raylog.core.errors import ConnectionFailed, DataDirectoryError, NotController, RaylogError, RequestTimedOut
from raylog.core.ids import ControllerEpoch
from raylog.core.invariants import InvariantBroken
from raylog.core.quorum import LogHistory, Proposer, ProposerSettings, Span
from raylog.core.quorum import events as ev
from raylog.rpc import Connection, Reply, Secret

logger = logging.getLogger(__name__)

FindVoter = Callable[[int], Awaitable[tuple[str, int]]]
"""Returns host and port of a broker by id; raises :class:`ConnectionFailed` when it cannot be found right now."""

FindBrokers = Callable[[], Awaitable[Collection[int]]]
"""Returns the ids of the brokers that run now; may raise :class:`ConnectionFailed`."""

TICK_S: Final = 0.05
LOOK_S: Final = 0.5
"""How often a candidate looks for more brokers."""
CALL_TIMEOUT_S: Final = 2.0
SEND_BYTES: Final = 1 << 20
SNAPSHOT_BYTES_PER_S: Final = 4 << 20
"""The slowest that a snapshot may travel before it is given up and sent again."""
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")


class StoreListener(Protocol):
    """The owner of a log, called on the event loop."""

    def on_committed(self, end: int) -> None:
        """Everything below ``end`` can no longer be lost."""

    def on_failed(self, reason: str) -> None:
        """No further record can be committed: the controller has to end."""

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """The log needs a record with this configuration."""


class QuorumLog:
    """One controller's hold on the metadata log; see the module."""

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
        """``voters`` found a new cluster, and are asked first; the voters of now are in the log, on any of the brokers.

        ``snapshot_bytes`` is how much is appended before a snapshot stands for it.
        """
        self._numbers = tuple(voters)
        self._find_voter = find_voter
        self._find_brokers = find_brokers
        self._secret = secret
        self._open_timeout_s = open_timeout_s
        self._snapshot_bytes = snapshot_bytes
        self._snapshot: MetadataSnapshot | None = None
        """What stands for everything before the first of the batches; None = nothing is before it."""
        self._batches: list[Batch] = []
        self._tail_bytes = 0
        self._taken: MetadataSnapshot | None = None
        """The next snapshot, until it is certain that everything in it is committed."""
        self._taking = False
        self._image = MetadataImage()
        self._connections: dict[int, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._heard: set[int] = set()
        self._has_log = False
        """Whether any broker has shown a log."""
        self._closed = False
        self._listener: StoreListener | None = None
        self._won: asyncio.Future[int] | None = None
        self._founding: Mapping[str, str] = {}
        self._proposer: Proposer | None = None

    # ------------------------------------------------------------ the store

    @property
    def log_end_offset(self) -> int:
        """Where the next record goes."""
        return self._batches[-1][0].end if self._batches else self._snapshot_end

    @property
    def _snapshot_end(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.end

    @property
    def committed_offset(self) -> int:
        """The end of what a majority has on disk, in this epoch."""
        return self._machine().committed

    @property
    def founding(self) -> Mapping[str, str]:
        """The voters to enter with the first batch, where the log names none."""
        return self._founding

    def want_voters(self, voters: Sequence[int]) -> None:
        """Have these brokers vote: they are brought up to date, then entered one by one."""
        self._feed(ev.VotersWanted(now_ms=monotonic_ms(), voters=frozenset(voters)))

    async def open(self, listener: StoreListener) -> tuple[MetadataImage, ControllerEpoch]:
        """Take promises from a majority, adopt the best log, and return what it adds up to, with the epoch to begin.

        Raises :class:`DataDirectoryError` when too many voters have lost their logs, :class:`NotController` when a
        majority does not answer in time or a newer controller is there.
        """
        self._listener = listener
        self._proposer = Proposer(
            self._numbers,
            candidate=uuid.uuid4().hex,
            settings=ProposerSettings(),
            jitter_ms=random.randint(0, 200),
        )
        self._won = asyncio.get_running_loop().create_future()
        self._ticking = asyncio.create_task(self._tick_forever(), name="quorum ticks")
        self._looking = asyncio.create_task(self._look_for_brokers(), name="looking for brokers")
        try:
            async with asyncio.timeout(self._open_timeout_s):
                epoch = await self._won
        except TimeoutError:
            raise NotController(self._without_majority()) from None
        finally:
            self._looking.cancel()
        return self._image, ControllerEpoch(epoch)

    def _without_majority(self) -> str:
        known = () if self._proposer is None else self._proposer.expected
        voters = sorted(known or self._numbers)
        missing = sorted(set(voters) - self._heard)
        here = "" if self._has_log else " No broker that answered holds the metadata log."
        return (
            f"No majority of the metadata voters (brokers {_list(voters) or 'unknown'}) promised within "
            f"{self._open_timeout_s:.0f} s; brokers {_list(missing) or 'none'} did not answer. Start them.{here}"
        )

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append records as one batch; the listener hears when a majority has it.

        Raises :class:`NotController` when a newer controller has been seen.
        """
        machine = self._machine()
        if machine.phase != "leading":
            raise NotController("A newer controller runs; this one has to end.")
        start = machine.history.end
        payload = bytearray(encoded(records))
        _BASE_OFFSET.pack_into(payload, 0, start)
        _LEADER_EPOCH.pack_into(payload, 12, controller_epoch)
        span = Span(start, start + len(records), controller_epoch)
        self._batches.append((span, bytes(payload)))
        self._tail_bytes += len(payload)
        entered = [record for record in records if isinstance(record, VotersEntered)]
        members = {int(number): identity for number, identity in entered[-1].voters.items()} if entered else None
        self._feed(ev.Appended(now_ms=monotonic_ms(), span=span, members=members))

    def offer(self, image: MetadataImage) -> None:
        """Take a snapshot when enough was appended since the last one. It is used when all in it is committed.

        Enough is at least as much as a snapshot has: else a large image would be written again and again.
        """
        machine = self._machine()
        least = self._snapshot_bytes if self._snapshot is None else max(self._snapshot_bytes, self._snapshot.size)
        if self._tail_bytes < least or self._taking or machine.phase != "leading":
            return
        if image.version != self.log_end_offset:
            return  # decisions of one step are being written one after the other
        self._taking = True
        epoch = machine.history.epoch_before(image.version)
        self._spawn(self._encode(image.to_records(), image.version, epoch))

    async def _encode(self, records: Sequence[MetadataRecord], end: int, epoch: int) -> None:
        self._taken = await asyncio.to_thread(MetadataSnapshot.of, records, end, epoch)
        self._use_snapshot()

    def _use_snapshot(self) -> None:
        taken = self._taken
        if taken is None or self._closed or self._machine().phase != "leading" or self.committed_offset < taken.end:
            return
        self._snapshot, self._taken, self._taking = taken, None, False
        self._batches = [batch for batch in self._batches if batch[0].start >= taken.end]
        self._tail_bytes = sum(len(payload) for _, payload in self._batches)
        logger.info("a snapshot of %d bytes stands for the metadata below %d", len(taken.batches), taken.end)
        self._feed(ev.SnapshotTaken(now_ms=monotonic_ms(), end=taken.end))

    async def close(self) -> None:
        """Stop writing and hang up. What was not committed may or may not survive."""
        self._closed = True
        tasks = [one for one in (self._ticking, self._looking, self._reading, *self._tasks) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close("the controller stops")
        self._connections.clear()
        if self._won is not None and not self._won.done():
            self._won.cancel()

    # ------------------------------------------------------------ the machine

    def _machine(self) -> Proposer:
        if self._proposer is None or self._closed:
            raise NotController("The controller's log is closed.")
        return self._proposer

    async def _tick_forever(self) -> None:
        while True:
            self._feed(ev.Tick(now_ms=monotonic_ms()))
            await asyncio.sleep(TICK_S)

    async def _look_for_brokers(self) -> None:
        while True:
            try:
                found = await self._find_brokers()
            except ConnectionFailed as error:
                logger.debug("the brokers that run are not known: %s", error)
            else:
                self._feed(ev.BrokersFound(now_ms=monotonic_ms(), brokers=frozenset(found)))
            await asyncio.sleep(LOOK_S)

    def _feed(self, event: ev.ProposerEvent) -> None:
        if self._closed:
            return
        try:
            for effect in self._machine().step(event).now:
                self._carry_out(effect)
        except Exception as defect:  # half a step may have been taken: only the voters can tell what holds
            self._end(defect)
            raise

    def _carry_out(self, effect: ev.ProposerEffect) -> None:
        match effect:
            case ev.AskPromise():
                self._spawn(self._ask_promise(effect))
            case ev.SendAppend():
                self._spawn(self._send_append(effect, self._batches_from(effect.start)))
            case ev.SendSnapshot():
                self._spawn(self._send_snapshot(effect, self._snapshot))
            case ev.ReadHistory():
                if self._reading is not None:
                    self._reading.cancel()
                self._reading = asyncio.create_task(self._read_history(effect), name="reading the metadata log")
            case ev.Won():
                logger.info("controller epoch %d: %d batches adopted", effect.epoch, len(self._batches))
                self._founding = {str(number): identity for number, identity in sorted(effect.members.items())}
                if self._won is not None and not self._won.done():
                    self._won.set_result(effect.epoch)
            case ev.EnterVoters():
                voters = {str(number): identity for number, identity in sorted(effect.members.items())}
                # Later, because the decision that brought this about has not been dealt with to its end yet.
                asyncio.get_running_loop().call_soon(self._enter, voters)
            case ev.Committed():
                if self._listener is not None:
                    self._listener.on_committed(effect.end)
                asyncio.get_running_loop().call_soon(self._use_snapshot)
            case ev.Fenced():
                self._end(
                    NotController(
                        f"Broker {effect.by} has promised controller epoch {effect.epoch}: a newer controller runs, "
                        "and this one ends."
                    )
                )
            case ev.Hopeless():
                self._end(DataDirectoryError(effect.reason))

    def _enter(self, voters: dict[str, str]) -> None:
        if not self._closed and self._listener is not None:
            self._listener.on_voters(voters)

    def _end(self, error: Exception) -> None:
        if self._won is not None and not self._won.done():
            self._won.set_exception(error)
        elif self._listener is not None:
            self._listener.on_failed(str(error))

    # ------------------------------------------------------------ voters

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(
        self, voter: int, method: str, args: list[object], payload: bytes = b"", timeout_s: float = CALL_TIMEOUT_S
    ) -> Reply | None:
        """Ask a voter; None when no answer came."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connections.get(voter)
                if connection is None or connection.is_closed:
                    host, port = await self._find_voter(voter)
                    connection = await dial(host, port, secret=self._secret, timeout_s=CALL_TIMEOUT_S)
                    self._connections[voter] = connection
                reply = await connection.call(method, args, payload, timeout_s=timeout_s)
        except (RaylogError, ConnectionFailed, OSError, TimeoutError) as error:
            logger.debug("voter %d did not answer %s: %s", voter, method, error)
            silent = self._connections.pop(voter, None) if isinstance(error, RequestTimedOut | TimeoutError) else None
            if silent is not None:  # after a cut of the network, a new connection works long before the old one does
                silent.abort(f"{method} was not answered in time")
            return None
        self._heard.add(voter)
        return reply

    async def _ask_promise(self, effect: ev.AskPromise) -> None:
        reply = await self._call(effect.voter, "voter_promise", [effect.epoch, effect.candidate])
        now_ms = monotonic_ms()
        if reply is None:
            self._feed(ev.VoterSilent(now_ms=now_ms, voter=effect.voter, request=effect.request))
            return
        granted, promised, identity, epochs, start, end, holds_data, founder = reply.args[:8]
        self._has_log = self._has_log or end > 0
        self._feed(
            ev.PromiseAnswered(
                now_ms=now_ms,
                voter=effect.voter,
                request=effect.request,
                granted=granted,
                promised=promised,
                identity=identity,
                history=LogHistory(((epoch, first) for epoch, first in epochs), end, start),
                holds_data=holds_data,
                founder=founder,
            )
        )

    async def _send_append(self, effect: ev.SendAppend, batches: bytes) -> None:
        args = [effect.epoch, effect.candidate, effect.start, effect.previous_epoch, effect.committed]
        self._heard_of_append(effect, await self._call(effect.voter, "voter_append", args, batches))

    async def _send_snapshot(self, effect: ev.SendSnapshot, snapshot: MetadataSnapshot | None) -> None:
        if snapshot is None or snapshot.end != effect.end:
            raise InvariantBroken(f"{effect} is the snapshot that is held")
        payload = await asyncio.to_thread(snapshot.to_bytes)
        timeout_s = CALL_TIMEOUT_S + len(payload) / SNAPSHOT_BYTES_PER_S
        args: list[object] = [effect.epoch, effect.candidate]
        self._heard_of_append(effect, await self._call(effect.voter, "voter_snapshot", args, payload, timeout_s))

    def _heard_of_append(self, effect: ev.SendAppend | ev.SendSnapshot, reply: Reply | None) -> None:
        now_ms = monotonic_ms()
        if reply is None:
            self._feed(ev.VoterSilent(now_ms=now_ms, voter=effect.voter, request=effect.request))
            return
        promised, identity, matched, epochs, end, start = reply.args[:6]
        self._feed(
            ev.AppendAnswered(
                now_ms=now_ms,
                voter=effect.voter,
                request=effect.request,
                promised=promised,
                identity=identity,
                matched=matched,
                history=LogHistory(((epoch, first) for epoch, first in epochs), end, start),
            )
        )

    def _batches_from(self, start: int) -> bytes:
        place = len(self._batches)
        while place > 0 and self._batches[place - 1][0].start >= start:
            place -= 1
        parts: list[bytes] = []
        left = SEND_BYTES
        for _, payload in self._batches[place:]:
            if parts and len(payload) > left:
                break
            parts.append(payload)
            left -= len(payload)
        return b"".join(parts)

    async def _read_history(self, effect: ev.ReadHistory) -> None:
        snapshot: MetadataSnapshot | None = None
        batches: list[Batch] = []
        if effect.source is not None:
            read = await self._read_from(effect.source, effect)
            if read is None:
                return
            snapshot, batches = read
        try:
            image = image_of((payload for _, payload in batches), None if snapshot is None else snapshot.image())
        except Exception as error:  # whatever it was, this log is none that this version can go on with
            self._end(error)
            return
        self._snapshot, self._batches, self._image = snapshot, batches, image
        self._tail_bytes = sum(len(payload) for _, payload in batches)
        members = {int(number): identity for number, identity in image.voters.items()}
        self._feed(ev.HistoryRead(now_ms=monotonic_ms(), source=effect.source, members=members))

    async def _read_from(
        self, source: int, effect: ev.ReadHistory
    ) -> tuple[MetadataSnapshot | None, list[Batch]] | None:
        """Return a voter's snapshot and the batches behind it; None, and the machine knows, when it gave none."""
        snapshot: MetadataSnapshot | None = None
        batches: list[Batch] = []
        offset = 0
        while offset < effect.end:
            reply = await self._call(source, "voter_read", [effect.epoch, effect.candidate, offset])
            allowed, promised = (False, 0) if reply is None else reply.args[:2]
            payload = bytes(reply.payload) if reply is not None and allowed else b""
            if offset < effect.start:
                snapshot = _expected(payload, effect)
                offset = effect.start if snapshot is not None else -1
            else:
                found = split(payload)
                batches.extend(found)
                offset = found[-1][0].end if found else -1
            if offset < 0:
                self._feed(ev.HistoryUnreadable(now_ms=monotonic_ms(), source=source, promised=promised))
                return None
        return snapshot, batches


def _expected(payload: bytes, effect: ev.ReadHistory) -> MetadataSnapshot | None:
    """Return the snapshot that the promise spoke of; None when this is not it."""
    try:
        snapshot = MetadataSnapshot.from_bytes(payload)
    except ValueError:
        return None
    return snapshot if (snapshot.end, snapshot.epoch) == (effect.start, effect.start_epoch) else None


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
