"""Redrives send the dead letters of a topic on, with a forwarder for each partition. Owned by the keeper's role.

A redrive and its progress are stored with the forwarders' notes, so that the next leader continues it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec

from raylog.actors.forwarding.forwarder import Forwarder
from raylog.actors.forwarding.kept import Keeper, Kept
from raylog.actors.forwarding.notes import decode_note, encode_note
from raylog.actors.forwarding.places import OtherSource, Place
from raylog.actors.naming import INTERNAL_PREFIX
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.errors import InvalidRequest, RedriveRunning, UnknownTopicOrPartition
from raylog.core.forwarding.machine import ForwarderSettings
from raylog.core.forwarding.note import Note
from raylog.core.forwarding.rules import RedriveRule, check_filters
from raylog.protocol.forwarding import (
    CancelRedriveReply,
    ListRedrivesReply,
    RedrivePartition,
    RedriveRow,
    StartRedriveReply,
    StartRedriveRequest,
)

logger = logging.getLogger(__name__)

PREFIX: Final = "redrive:"
FRONTIER: Final = "redriven:"
UNSENT: Final = "unsent:"
RUNNING, HOLDING, CANCELLING, DONE, CANCELLED = "running", "holding", "cancelling", "done", "cancelled"
WHERE_MAX: Final = 16 * 1024
"""Most characters of a redrive's filters, which are stored in each of its notes."""
FRESH_MS: Final = 2_000
"""How long the number of partitions of a redrive's target is used before it is looked up again."""
KEPT_MS: Final = 7 * 86_400_000
"""How long a redrive that has ended is listed."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """One redrive, as it is stored. ``spans``: start, end, position and number of sent records of each partition."""

    number: int
    topic: str
    topic_id: str
    to: str
    where: Mapping[str, str]
    rate: int
    state: str
    started_ms: int
    ended_ms: int
    spans: tuple[tuple[int, int, int, int], ...]
    from_start: bool = False
    sent_below: tuple[int, ...] = ()
    """By partition: the offset below which earlier redrives have sent all records, except those without an origin."""

    def encode(self) -> bytes:
        """Return the stored form."""
        return msgspec.msgpack.encode([getattr(self, name) for name in self.__slots__])

    @classmethod
    def decode(cls, data: bytes) -> Redrive:
        """Return the redrive in this stored form; fields of a later release are ignored."""
        wire: list[Any] = msgspec.msgpack.decode(data)
        wire = wire[: len(cls.__slots__)]
        wire[9] = tuple(tuple(span) for span in wire[9])
        wire[11:] = [tuple(each) for each in wire[11:]]
        return cls(*wire)

    @property
    def has_ended(self) -> bool:
        """Whether it is done, or was cancelled."""
        return self.state in (DONE, CANCELLED)


class OwnNotes:
    """The notes of a forwarder that runs in the keeper's own process."""

    def __init__(self, keeper: Keeper, name: str) -> None:
        """``name``: the name of the forwarder."""
        self._keeper = keeper
        self._name = name

    async def load(self) -> Note | None:
        """Return the note that was stored last."""
        kept = self._keeper.kept.get(self._name)
        return None if kept is None else decode_note(kept.data)

    async def save(self, note: Note) -> None:
        """Store the note."""
        await self._keeper.save(self._name, Kept(0, encode_note(note)))


@dataclass(slots=True)
class _Run:
    """A redrive that runs in this process."""

    forwarders: dict[int, Forwarder] = field(default_factory=dict)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Position and number of sent records of each finished partition."""
    skipped: dict[int, int] = field(default_factory=dict)
    """The first record that each of these has left for a later redrive; -1 = none."""


class _Owner:
    """What all forwarders of a redrive share: the rule and the clocks."""

    def __init__(self, keeper: Keeper, rule: RedriveRule) -> None:
        """``rule``: without the number of partitions of its target, which is looked up."""
        self.clock = TimeOfDay(keeper.host)
        self._host = keeper.host
        self._rule = rule
        self._setting = asyncio.Lock()
        self._is_set = False
        self._known_ms = -FRESH_MS

    async def ready(self) -> None:
        """Wait until the time of day is known."""
        async with self._setting:
            if not self._is_set:
                await self.clock.set()
                self._is_set = True

    async def look(self) -> None:
        """Look up how many partitions the target has."""
        if self._rule.to and self._host.now_ms() - self._known_ms >= FRESH_MS:
            (row,) = (await self._host.metadata([self._rule.to])).topics
            self._rule = replace(self._rule, partitions=0 if row.error_code else len(row.partitions))
            self._known_ms = self._host.now_ms()

    def rule(self, text: str | None) -> RedriveRule:
        """Return the rule; a rule in a note keeps its number of partitions, so that decisions stay the same."""
        return replace(self._rule, partitions=RedriveRule.of_text(text).partitions) if text else self._rule

    def due_ms(self, timestamp_ms: int) -> int:
        """Return 0: every record may be forwarded at once."""
        return 0

    async def acknowledged(self) -> int:
        """Return 0: committed offsets of groups do not matter."""
        return 0

    def now_ms(self) -> int:
        """Return a monotonic time, for pauses and rates."""
        return self._host.now_ms()

    def day_ms(self) -> int:
        """Return the time of day, which was set by most brokers' clocks when the redrive began here."""
        return self.clock.now_ms()


class _PartitionOwner:
    """The `Owner` of the forwarder of one partition."""

    def __init__(self, owner: _Owner, sent_below: int) -> None:
        """``sent_below``: the offset below which earlier redrives have sent all records except those without origin."""
        self._owner = owner
        self._sent_below = sent_below
        self.look, self.due_ms, self.acknowledged = owner.look, owner.due_ms, owner.acknowledged
        self.now_ms, self.day_ms = owner.now_ms, owner.day_ms

    def rule(self, text: str | None) -> RedriveRule:
        """Return the rule of the redrive, for this partition."""
        return replace(self._owner.rule(text), sent_below=self._sent_below)


class Redrives:
    """All redrives of the cluster."""

    def __init__(self, keeper: Keeper) -> None:
        """``keeper`` stores them."""
        self._keeper = keeper
        self._runs: dict[int, _Run] = {}
        self._starting: set[str] = set()
        self._unreadable = 0
        """How many batches could not be decoded, in redrives that have ended."""

    @property
    def is_busy(self) -> bool:
        """Whether a redrive runs or begins."""
        return bool(self._runs) or bool(self._starting)

    def resume(self) -> None:
        """Continue the redrives that have not ended."""
        for redrive in self._all():
            if not redrive.has_ended and redrive.number not in self._runs:
                self._run(redrive)

    def _all(self) -> list[Redrive]:
        found = [
            Redrive.decode(kept.data)
            for name, kept in self._keeper.kept.items()
            if name.startswith(PREFIX) and name.count(":") == 1
        ]
        return sorted(found, key=lambda redrive: redrive.number)

    # ------------------------------------------------------------ requests

    async def start(self, args: StartRedriveRequest) -> StartRedriveReply:
        """Begin a redrive. Raises InvalidRequest, UnknownTopicOrPartition, RedriveRunning."""
        check_filters(args.where)
        self._check(args)
        if args.topic in self._starting:
            raise RedriveRunning(f"A redrive of {args.topic} is just beginning.")
        self._starting.add(args.topic)
        try:
            redrive = await self._new(args)
            await self._keeper.save(f"{PREFIX}{redrive.number}", Kept(0, redrive.encode()))
        finally:
            self._starting.discard(args.topic)
        self._run(redrive)
        await self._forget_old()
        return StartRedriveReply(redrive.number)

    def _check(self, args: StartRedriveRequest) -> None:
        if args.rate < 0:
            raise InvalidRequest(f"rate={args.rate}: records a second, or 0 for as fast as they go.")
        if sum(len(name) + len(value) for name, value in args.where.items()) > WHERE_MAX:
            raise InvalidRequest(f"The filters of a redrive have more than {WHERE_MAX} characters; use shorter ones.")
        if args.topic.startswith(INTERNAL_PREFIX) and args.topic != UNDELIVERABLE_TOPIC:
            raise InvalidRequest(f"{args.topic} is Raylog's own, and holds no dead letters.")
        if args.to.startswith(INTERNAL_PREFIX):
            raise InvalidRequest(f"{args.to} is Raylog's own: nothing can be sent there.")
        if args.to == args.topic:
            raise InvalidRequest(f"{args.topic} is where they are; name another topic, or none for their origins.")
        running = next((each for each in self._all() if each.topic == args.topic and not each.has_ended), None)
        if running is not None:
            raise RedriveRunning(
                f"Redrive {running.number} of {args.topic} runs; wait for its end, or cancel it: "
                f"`raylog dlq cancel {running.number}`."
            )

    async def _new(self, args: StartRedriveRequest) -> Redrive:
        host = self._keeper.host
        wanted = [args.topic, *([args.to] if args.to else [])]
        rows = {row.topic: row for row in (await host.metadata(wanted)).topics}
        for name in wanted:
            if rows[name].error_code:
                raise UnknownTopicOrPartition(f"There is no topic {name!r}.", topic=name)
        topic = rows[args.topic]
        kept = self._keeper.kept.get(FRONTIER + topic.topic_id)
        frontier: list[int] = [] if kept is None or args.from_start else msgspec.msgpack.decode(kept.data)
        unsent = [] if args.from_start else self._unsent(topic.topic_id)
        spans: list[tuple[int, int, int, int]] = []
        for number in range(len(topic.partitions)):
            first, end = await OtherSource(host, Place(args.topic, topic.topic_id, number)).bounds()
            behind = frontier[number] if number < len(frontier) else 0
            left = unsent[number] if number < len(unsent) else -1
            start = min(end, max(first, behind if left < 0 else min(left, behind)))
            spans.append((start, end, start, 0))
        number = 1 + max((each.number for each in self._all()), default=0)
        return Redrive(
            number,
            args.topic,
            topic.topic_id,
            args.to,
            dict(args.where),
            args.rate,
            RUNNING,
            host.wall_ms(),
            -1,
            tuple(spans),
            args.from_start,
            tuple(frontier),
        )

    def _unsent(self, topic_id: str) -> list[int]:
        """Return, by partition, the first record that redrives of a topic have left; -1 = none."""
        kept = self._keeper.kept.get(UNSENT + topic_id)
        return [] if kept is None else [int(each) for each in msgspec.msgpack.decode(kept.data)]

    def list(self, topic: str) -> ListRedrivesReply:
        """Return the redrives of a topic, or all redrives ("")."""
        return ListRedrivesReply([self._row(each) for each in self._all() if not topic or each.topic == topic])

    def _row(self, redrive: Redrive) -> RedriveRow:
        run = self._runs.get(redrive.number)
        partitions: list[RedrivePartition] = []
        is_holding = False
        for number, (start, end, position, sent) in enumerate(redrive.spans):
            forwarder = None if run is None else run.forwarders.get(number)
            if run is not None and number in run.ended:
                position, sent = run.ended[number]
            elif forwarder is not None and forwarder.machine.note.producer_id >= 0:
                position, sent = forwarder.machine.note.position, forwarder.machine.note.sent
                is_holding = is_holding or forwarder.machine.is_holding
            partitions.append(RedrivePartition(number, start, position, end, sent))
        return RedriveRow(
            redrive.number,
            redrive.topic,
            redrive.to,
            redrive.where,
            redrive.rate,
            HOLDING if is_holding and redrive.state == RUNNING else redrive.state,
            redrive.started_ms,
            redrive.ended_ms,
            partitions,
        )

    async def cancel(self, number: int) -> CancelRedriveReply:
        """Cancel a redrive; returns when that is stored."""
        found = next((each for each in self._all() if each.number == number), None)
        if found is None:
            return CancelRedriveReply("NOT_FOUND")
        if found.has_ended:
            return CancelRedriveReply("ALREADY_ENDED")
        await self._keeper.save(f"{PREFIX}{number}", Kept(0, replace(found, state=CANCELLING).encode()))
        run = self._runs.get(number)
        if run is not None:
            for forwarder in run.forwarders.values():
                forwarder.stop()
        return CancelRedriveReply("CANCELLED")

    # ------------------------------------------------------------ running

    def _run(self, redrive: Redrive) -> None:
        run = self._runs[redrive.number] = _Run()
        owner = _Owner(self._keeper, RedriveRule(redrive.to, dict(redrive.where)))
        host = self._keeper.host
        for number, (start, end, _, _) in enumerate(redrive.spans):
            name = f"{PREFIX}{redrive.number}:{number}"
            forwarder = run.forwarders[number] = Forwarder(
                host,
                f"redrive {redrive.number} of {redrive.topic}-{number}",
                source=OtherSource(host, Place(redrive.topic, redrive.topic_id, number)),
                notes=OwnNotes(self._keeper, name),
                owner=_PartitionOwner(owner, redrive.sent_below[number] if number < len(redrive.sent_below) else 0),
                settings=ForwarderSettings(end=end, rate=redrive.rate),
                start=partial(_given, start),
            )
            if redrive.state == CANCELLING:
                forwarder.stop()
            host.spawn(self._through(redrive.number, number, forwarder, owner), name)
        if not redrive.spans:
            host.spawn(self._finish(redrive.number), f"{PREFIX}{redrive.number}")

    async def _through(self, redrive: int, partition: int, forwarder: Forwarder, owner: _Owner) -> None:
        await owner.ready()
        await forwarder.run()
        note = forwarder.machine.note
        run = self._runs[redrive]
        run.ended[partition] = note.position, note.sent
        run.skipped[partition] = note.skipped
        if len(run.ended) == len(run.forwarders):
            await self._finish(redrive)

    async def _finish(self, number: int) -> None:
        """Store that a redrive has ended, and its progress."""
        run = self._runs[number]
        keeper = self._keeper
        redrive = Redrive.decode(keeper.kept[f"{PREFIX}{number}"].data)
        spans = tuple(
            (start, end, *run.ended.get(partition, (start, 0)))
            for partition, (start, end, _, _) in enumerate(redrive.spans)
        )
        is_done = all(position >= end for _, end, position, _ in spans)
        ended = replace(redrive, state=DONE if is_done else CANCELLED, ended_ms=keeper.host.wall_ms(), spans=spans)
        if not redrive.where:
            # Partitions where nothing was sent stay to be sent, for example to another topic (`after_redrive`).
            kept = keeper.kept.get(FRONTIER + redrive.topic_id)
            before: list[int] = [] if kept is None else msgspec.msgpack.decode(kept.data)
            before += [0] * (len(spans) - len(before))
            unsent = self._unsent(redrive.topic_id)
            reached: list[tuple[int, int]] = []
            for partition, ((_, _, position, sent), was) in enumerate(zip(spans, before, strict=False)):
                below, skipped = 0 if redrive.from_start else was, run.skipped.get(partition, -1)
                if redrive.from_start and not sent and skipped < 0 and partition < len(unsent):
                    skipped = unsent[partition]  # cancelled before it reached that record
                reached.append(after_redrive(was, below, position, sent, skipped))
            left = msgspec.msgpack.encode([first for _, first in reached])
            await keeper.save_surely(UNSENT + redrive.topic_id, Kept(0, left))
            frontier = msgspec.msgpack.encode([behind for behind, _ in reached])
            await keeper.save_surely(FRONTIER + redrive.topic_id, Kept(0, frontier))
        await keeper.save_surely(f"{PREFIX}{number}", Kept(0, ended.encode()))
        for partition in run.forwarders:
            await keeper.save_surely(f"{PREFIX}{number}:{partition}", None)
        self._unreadable += sum(forwarder.unreadable for forwarder in run.forwarders.values())
        del self._runs[number]
        logger.info("redrive %d of %s has ended: %s", number, redrive.topic, ended.state)

    async def _forget_old(self) -> None:
        """Delete redrives that ended long ago; the newest stays, because it has the last number."""
        until_ms = self._keeper.host.wall_ms() - KEPT_MS
        for redrive in self._all()[:-1]:
            if redrive.has_ended and redrive.ended_ms < until_ms:
                await self._keeper.save(f"{PREFIX}{redrive.number}", None)

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        running = [forwarder for run in self._runs.values() for forwarder in run.forwarders.values()]
        return {
            "redrives": len(self._runs),
            "redrives_unreadable": self._unreadable + sum(forwarder.unreadable for forwarder in running),
            "redrives_holding": sum(forwarder.machine.is_holding for forwarder in running),
        }


def after_redrive(before: int, sent_below: int, position: int, sent: int, skipped: int) -> tuple[int, int]:
    """Return where the next redrive of a partition begins, and the first earlier record that still has to be sent.

    That record is -1 if there is none. ``before``: where this redrive was to begin. ``sent_below``: it left out records
    below this offset, because they had been sent. ``position``: how far it came. ``sent``: how many records it sent.
    ``skipped``: the first record that it left; -1 = none.
    """
    behind = max(sent_below, position) if sent else before
    if 0 <= skipped < behind:
        return behind, skipped
    return behind, position if position < sent_below else -1


async def _given(start: int) -> int:
    return start
