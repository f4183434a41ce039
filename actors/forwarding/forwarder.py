"""The shell of a forwarder: reads the source, sends parcels and stores progress, as its machine decides.

Owned by a role. After a failure with an unknown outcome it begins again from the stored progress, as the next leader
would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from raylog.actors.forwarding.pieces import PieceRecords, cut, encode
from raylog.actors.forwarding.places import WAIT_MS, Place, Source, resolve
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.late import LateWarnings
from raylog.base.errors import (
    DuplicateSequence,
    ForwarderFenced,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.core.forwarding import events as ev
from raylog.core.forwarding.machine import ForwarderMachine, ForwarderSettings
from raylog.core.forwarding.progress import Progress
from raylog.core.forwarding.rules import Rule
from raylog.core.lane import Trouble, trouble_of
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.storage.batch.header import LASTING_PRODUCERS

logger = logging.getLogger(__name__)

AGAIN_FIRST_S: Final = 0.1
AGAIN_LAST_S: Final = 5.0
LONGEST_TIMER_S: Final = 3_600.0
ROWS_MAX: Final = 1 << 30


class ProgressStore(Protocol):
    """Where a forwarder's progress is stored."""

    async def load(self) -> Progress | None:
        """Return the progress that was stored last, or None. Raises ForwarderFenced, RaylogError, OSError."""

    async def save(self, progress: Progress) -> None:
        """Store the progress, and wait until it is stored. Raises ForwarderFenced, RaylogError, OSError."""


class Owner(Protocol):
    """What a forwarder needs from its role."""

    async def look(self) -> None:
        """Look up what the present rule depends on. Raises RaylogError, OSError."""

    def rule(self, text: str | None) -> Rule:
        """Return the present rule, or (``text``) the stored rule."""

    def due_ms(self, timestamp_ms: int) -> int:
        """Return when a record with this timestamp may be forwarded, as a time of ``now_ms``."""

    async def acknowledged(self) -> int:
        """Return the offset below which nothing is forwarded; 0 = none. Raises RaylogError, OSError."""

    def now_ms(self) -> int:
        """Return the time by which records are due."""

    def day_ms(self) -> int:
        """Return the time of day for the timestamps of forwarded records, by which they may expire in the target."""


class Forwarder:
    """One forwarder. It runs in a task of its role's host."""

    def __init__(
        self,
        host: RoleHost,
        name: str,
        *,
        source: Source,
        store: ProgressStore,
        owner: Owner,
        settings: ForwarderSettings,
        start: Callable[[], Awaitable[int]],
    ) -> None:
        """``start`` returns the offset where it begins if no progress is stored."""
        self._host = host
        self._name = name
        self._source = source
        self._store = store
        self._owner = owner
        self._settings = settings
        self._start = start
        self._held: dict[int, PieceRecords] = {}
        self._stops = False
        self._late = LateWarnings()
        self.unreadable = 0
        """How many batches of the source cannot be decoded."""
        self._damaged_end = 0
        self._poke = asyncio.Event()
        self._ended: asyncio.Future[ev.Ended] | None = None
        self._group: asyncio.TaskGroup | None = None
        self.machine = ForwarderMachine(settings)

    async def run(self) -> ev.Ended:
        """Forward until the end of the work, or until it is stopped.

        Raises NotLeaderOrFollower when this leadership is over, or another leader forwards these records.
        """
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                return await self._live()
            except ExceptionGroup as failed:
                expected, other = failed.split((RaylogError, OSError))
                if expected is None or other is not None:
                    raise
                errors = list(_each(expected))
                if self._host.is_over or any(isinstance(error, ForwarderFenced) for error in errors):
                    raise NotLeaderOrFollower(f"{self._name}: another leader forwards these records.") from failed
                if any(isinstance(error, UnknownTopicOrPartition) and not error.is_remote for error in errors):
                    logger.warning("%s ends: %s", self._name, errors[0])
                    return ev.Ended(was_stopped=True)  # its source was deleted
                logger.info("%s begins again: %r", self._name, errors[0])
            sent = self.machine.progress.sent
            await asyncio.sleep(pause_s)
            pause_s = AGAIN_FIRST_S if sent else min(AGAIN_LAST_S, 2 * pause_s)

    def stop(self) -> None:
        """Let it end once everything decided has arrived in the targets."""
        self._stops = True
        self._feed(ev.StopRequested(now_ms=self._owner.now_ms()))

    def poke(self) -> None:
        """Let it check at once whether something is due, because the time has jumped."""
        self._feed(ev.Tick(now_ms=self._owner.now_ms()))

    # ------------------------------------------------------------ the machine

    async def _live(self) -> ev.Ended:
        self._ended = asyncio.get_running_loop().create_future()
        self.machine = ForwarderMachine(self._settings)
        self._held = {}
        progress = await self._loaded()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ticks = group.create_task(self._tick(), name=f"{self._name} ticks")
                self._feed(ev.Loaded(now_ms=self._owner.now_ms(), progress=progress))
                if self._stops:
                    self._feed(ev.StopRequested(now_ms=self._owner.now_ms()))
                await self._ended
                ticks.cancel()
        finally:
            self._group = None
        return self._ended.result()

    async def _loaded(self) -> Progress:
        try:
            await self._source.begin()
            progress = await self._store.load()
            if progress is None:
                start = await self._start()
                progress = Progress(producer_id=await self._new_producer(), position=start, decided_end=start)
        except (RaylogError, OSError) as error:
            raise ExceptionGroup("not loaded", [error]) from None
        return progress

    async def _new_producer(self) -> int:
        return await self._host.producer_id() | LASTING_PRODUCERS

    def _feed(self, event: ev.Event) -> None:
        group = self._group
        if group is None or self._ended is None or self._ended.done():
            return
        for effect in self.machine.step(event).now:
            if isinstance(effect, ev.Ended):
                self._ended.set_result(effect)
            else:
                group.create_task(self._carry_out(effect), name=f"{self._name} {type(effect).__name__}")
        self._poke.set()

    async def _tick(self) -> None:
        while True:
            self._poke.clear()
            due_ms = self.machine.next_ms()
            pause_s = LONGEST_TIMER_S if due_ms is None else max(0, due_ms - self._owner.now_ms()) / 1000
            try:
                async with asyncio.timeout(min(LONGEST_TIMER_S, pause_s)):
                    await self._poke.wait()
            except TimeoutError:
                self._feed(ev.Tick(now_ms=self._owner.now_ms()))

    async def _carry_out(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Read():
                event: ev.Event = await self._read(effect)
            case ev.Resolve():
                found = await resolve(self._host, effect.routes)
                producer_id = await self._new_producer() if effect.takes_producer else -1
                event = ev.Resolved(now_ms=self._owner.now_ms(), found=found, producer_id=producer_id)
            case ev.Save():
                await self._store.save(effect.progress)
                event = ev.Saved(now_ms=self._owner.now_ms())
            case ev.Send():
                event = await self._send(effect.parcel)
            case _:
                return
        self._feed(event)

    # ------------------------------------------------------------ reading

    async def _read(self, effect: ev.Read) -> ev.PiecesRead:
        if effect.rule is None:
            await self._owner.look()
        rule = self._owner.rule(effect.rule)
        rate = self._settings.rate
        offset = effect.offset
        held: dict[int, PieceRecords] = {}
        while True:
            try:
                reply, records = await self._source.read(offset, WAIT_MS if effect.waits else 0)
            except OffsetOutOfRange:
                log_start, log_end = await self._source.bounds()
                if log_start <= offset <= log_end:
                    raise
                return self._pieces_read(held, offset, log_start, log_end, 0, rule)
            pieces, behind = cut(
                records, offset, reply.aborted, self._source.place.partition, rule, self._owner.due_ms, rate or ROWS_MAX
            )
            held |= {each.piece.first: each for each in pieces}
            self._note_damage(pieces)
            end = reply.last_stable_offset
            if end < 0:
                raise LeaderNotAvailable(f"{self._name}: the end of the source is not known yet.")
            is_moved, offset = behind > offset, behind
            if offset >= effect.until or not is_moved:
                break
        acknowledged = await self._owner.acknowledged() if held and effect.rule is None else 0
        # Everything decided is below the end that was seen then, and that end never goes back.
        end = max(end, offset) if is_moved or offset >= effect.until else end
        return self._pieces_read(held, offset, reply.log_start_offset, end, acknowledged, rule)

    def _note_damage(self, pieces: list[PieceRecords]) -> None:
        """Count and log batches that cannot be decoded, each once."""
        for each in pieces:
            if each.damage and each.piece.first >= self._damaged_end:
                self._damaged_end, self.unreadable = each.piece.end, self.unreadable + 1
                logger.warning("%s: %s", self._name, each.damage)

    def _pieces_read(
        self,
        held: dict[int, PieceRecords],
        next_offset: int,
        log_start: int,
        log_end: int,
        acknowledged: int,
        rule: Rule,
    ) -> ev.PiecesRead:
        self._held = held
        return ev.PiecesRead(
            now_ms=self._owner.now_ms(),
            pieces=tuple(each.piece for each in held.values()),
            next_offset=next_offset,
            log_start=log_start,
            log_end=log_end,
            acknowledged=acknowledged,
            rule=rule.to_text(),
        )

    # ------------------------------------------------------------ sending

    async def _send(self, parcel: ev.Parcel) -> ev.Event:
        machine = self.machine
        place = self._source.place
        rule = self._owner.rule(machine.progress.rule)
        trouble: Trouble | None = None
        try:
            batch = encode(
                self._held[parcel.piece],
                parcel,
                rule,
                (place.topic, place.partition),
                machine.progress.producer_id,
                self._owner.day_ms(),
            )
            to = Place(parcel.route[0], parcel.topic_id, parcel.partition)
            targets = self._host.targets
            await (targets.schedule(to, batch) if to.topic == SCHEDULED_TOPIC else targets.send(to, batch))
        except DuplicateSequence:
            pass  # stored before
        except (RaylogError, OSError) as error:
            trouble = trouble_of(error)
            if self._is_to_be_logged(parcel, trouble):
                logger.warning("%s: %s-%d: %s", self._name, parcel.route[0], parcel.partition, error)
        if trouble is None:
            self._late.over(parcel.route)
            return ev.Sent(now_ms=self._owner.now_ms(), route=parcel.route)
        return ev.NotSent(now_ms=self._owner.now_ms(), route=parcel.route, trouble=trouble)

    def _is_to_be_logged(self, parcel: ev.Parcel, trouble: Trouble) -> bool:
        """Whether an error is logged. One that may pass is logged only after it has lasted, and then once a minute."""
        if trouble is not Trouble.UNREACHABLE:
            self._late.over(parcel.route)
            return True
        now_ms = self._owner.now_ms()
        return self._late.is_due(parcel.route, now_ms, now_ms)


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
