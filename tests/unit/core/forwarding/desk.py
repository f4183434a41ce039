"""A forwarder's surroundings for tests: a source, targets that remember producers as partitions do, stored progress."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raylog.actors.forwarding.progress import encode_progress
from raylog.base.errors import InvalidProducerEpoch, OutOfOrderSequence
from raylog.core.forwarding import events as ev
from raylog.core.forwarding.machine import ForwarderMachine, ForwarderSettings
from raylog.core.forwarding.progress import UNDELIVERABLE, Progress, Route
from raylog.core.lane import Trouble
from raylog.storage.batch.header import BatchHeader
from raylog.storage.log.producer_state import ProducerState

PRODUCER = 7
READ_PIECES = 10


def size_of(offset: int) -> int:
    """Return a record's size in bytes, from 1 to 13."""
    return 1 + (offset * 7) % 13


@dataclass
class Target:
    """One partition: the offsets of the source's records that it holds, in order."""

    records: list[int] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)
    refuses: frozenset[int] = frozenset()
    """Records that it never takes."""
    limit: int = 1_000_000
    """Most bytes of a parcel."""
    bare: set[int] = field(default_factory=set)
    """Records that came without their bodies."""
    is_reachable: bool = True

    def append(self, parcel: ev.Parcel, producer_id: int = PRODUCER) -> Trouble | None:
        """Take a parcel as a partition does; return why not."""
        count = len(parcel.offsets)
        header = BatchHeader(
            len(self.records), 0, 0, 77, 0, 0, count - 1, 0, 0, producer_id, parcel.epoch, parcel.base_sequence, count
        )
        try:
            duplicate = self.producers.check(header)
        except (OutOfOrderSequence, InvalidProducerEpoch):
            return Trouble.FORGOTTEN
        if duplicate is None:
            size = sum(size_of(offset) for offset in parcel.offsets if offset not in parcel.bare)
            if self.refuses & set(parcel.offsets) or size > self.limit:
                return Trouble.REFUSED
            self.bare |= parcel.bare
            self.records += parcel.offsets
            self.producers.apply(header, 0, None)
        return None


class Desk:
    """One forwarder, whose owner can be replaced."""

    def __init__(self, settings: ForwarderSettings | None = None) -> None:
        self.settings = settings or ForwarderSettings()
        self.now_ms = 1_000_000
        self.pieces: list[ev.Piece] = []
        self.log_start = 0
        self.acknowledged = 0
        self.topics: dict[Route, str] = {UNDELIVERABLE: "dead"}
        """Routes that lead somewhere, with the ids of their topics."""
        self.targets: dict[str, Target] = {"dead": Target()}
        self.progress = Progress(producer_id=PRODUCER, position=0, decided_end=0)
        self.saves = 0
        self.largest_progress = 0
        """Bytes of the largest progress that was stored."""
        self.producers = PRODUCER
        self.rule = ""
        self.rules: list[str | None] = []
        """By which rules pieces were requested."""
        self.todo: deque[ev.Effect] = deque()
        self.is_waiting = False
        self.ended: ev.Ended | None = None
        self.machine = ForwarderMachine(self.settings)

    @property
    def log_end(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    def add_topic(self, name: str, topic_id: str = "") -> Target:
        """Create a topic of one partition."""
        topic_id = topic_id or name
        self.topics[name, 0] = topic_id
        return self.targets.setdefault(topic_id, Target())

    def delete_topic(self, name: str) -> None:
        """Delete a topic; what it holds is lost."""
        self.targets.pop(self.topics.pop((name, 0)), None)

    def add_piece(self, count: int, *names: str, due_ms: int = 0) -> ev.Piece:
        """Append records to the source; record number n of the piece goes to topic n, in turn; none = it stays."""
        first = self.log_end
        offsets = range(first, first + count)
        routes = [(name, 0) for name in names]
        parts = [(route, tuple(offsets[number :: len(routes)])) for number, route in enumerate(routes)]
        piece = ev.Piece(first, first + count, due_ms, tuple(part for part in parts if part[1]))
        self.pieces.append(piece)
        if self.is_waiting:
            self.is_waiting = False
            self.feed(self.read(self.machine.progress.position))
        return piece

    def begin(self) -> None:
        """Let a new owner begin, from the stored progress."""
        self.machine = ForwarderMachine(self.settings)
        self.todo.clear()
        self.is_waiting = False
        self.feed(ev.Loaded(now_ms=self.now_ms, progress=self.progress))

    def feed(self, event: ev.Event) -> None:
        self.todo.extend(self.machine.step(event).now)

    def read(self, offset: int, until: int = 0) -> ev.PiecesRead:
        kept = [piece for piece in self.pieces if piece.end > max(offset, self.log_start)]
        count = max(READ_PIECES, sum(piece.first < until for piece in kept))
        pieces = tuple(kept[:count])
        return ev.PiecesRead(
            now_ms=self.now_ms,
            pieces=pieces,
            next_offset=pieces[-1].end if pieces else self.log_end,
            log_start=self.log_start,
            log_end=self.log_end,
            acknowledged=self.acknowledged,
            rule=self.rule,
        )

    def work(self) -> None:
        """Carry out one effect."""
        match effect := self.todo.popleft():
            case ev.Read():
                self.rules.append(effect.rule)
                if effect.waits and effect.offset >= self.log_end:
                    self.is_waiting = True
                else:
                    self.feed(self.read(effect.offset, effect.until))
            case ev.Resolve():
                found = tuple((route, self.topics.get(route, ""), 0) for route in effect.routes)
                self.producers += effect.takes_producer
                producer_id = self.producers if effect.takes_producer else -1
                self.feed(ev.Resolved(now_ms=self.now_ms, found=found, producer_id=producer_id))
            case ev.Save():
                self.progress = effect.progress
                self.saves += 1
                self.largest_progress = max(self.largest_progress, len(encode_progress(effect.progress)))
                self.feed(ev.Saved(now_ms=self.now_ms))
            case ev.Send():
                self.answer(effect.parcel)
            case ev.Ended():
                self.ended = effect

    def append(self, parcel: ev.Parcel) -> Trouble | None:
        """Bring a parcel to its target; return why it is not there."""
        target = self.targets.get(parcel.topic_id)
        if target is None:
            return Trouble.DELETED
        return target.append(parcel, self.machine.progress.producer_id) if target.is_reachable else Trouble.UNREACHABLE

    def answer(self, parcel: ev.Parcel) -> None:
        """Bring a parcel to its target, and let the forwarder know."""
        trouble = self.append(parcel)
        if trouble is None:
            self.feed(ev.Sent(now_ms=self.now_ms, route=parcel.route))
        else:
            self.feed(ev.NotSent(now_ms=self.now_ms, route=parcel.route, trouble=trouble))

    def settle(self, rounds: int = 10_000) -> None:
        """Carry everything out, and let time pass to the next event, until only time or records are waited for."""
        for _ in range(rounds):
            if self.todo:
                self.work()
                continue
            return
        raise AssertionError("the forwarder never rests")

    def pass_time(self, ms: int) -> None:
        """Let time pass, and everything happen meanwhile."""
        end_ms = self.now_ms + ms
        self.settle()
        while (due_ms := self.machine.next_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.feed(ev.Tick(now_ms=self.now_ms))
            self.settle()
        self.now_ms = end_ms

    def holds(self, topic_id: str) -> list[int]:
        """Return the records of a target."""
        return self.targets[topic_id].records
