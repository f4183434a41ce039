"""Random histories of a lane: whatever is lost, late, refused or restarted, each record is stored once, in order.

The partition is a model with the rules of a leader for producers. The owner writes down what any owner has to: its open
batches, how many are stored, and new epochs. A new owner knows what is written down, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.lane import BATCHES_MAX, SEQUENCES, Lane, Remedy, Trouble, sequence_after, split_at
from tests.simulation.planted.bugs import Edit

SEEDS = 150
STEPS = 400
KEPT = 5
PAUSE_MS, PAUSE_MAX_MS = 4, 32


@dataclass(frozen=True)
class Batch:
    epoch: int
    sequence: int
    records: tuple[int, ...]

    @property
    def end(self) -> int:
        return sequence_after(self.sequence, len(self.records))


@dataclass
class Partition:
    """A leader's log, and what it knows of one producer."""

    leader_epoch: int = 0
    log: list[Batch] = field(default_factory=list)

    def append(self, batch: Batch, poison: set[int]) -> Trouble | None:
        """Append as a leader does; None = stored, now or before."""
        if poison & set(batch.records):
            return Trouble.REFUSED
        if self.log:
            last = self.log[-1]
            if batch.epoch < last.epoch:
                return Trouble.FORGOTTEN
            of_epoch = [known for known in self.log if known.epoch == last.epoch]
            if batch.epoch == last.epoch and batch.sequence != last.end:
                return None if batch in of_epoch[-KEPT:] else Trouble.FORGOTTEN
            if batch.epoch > last.epoch and batch.sequence != 0:
                return Trouble.FORGOTTEN
        self.log.append(batch)
        return None


@dataclass
class Written:
    """What an owner has written down."""

    epoch: int = 0
    first: int = 0
    """The sequence at which the open batches begin."""
    batches: list[Batch] = field(default_factory=list)
    parts: list[tuple[int, ...]] = field(default_factory=list)
    """Records that come next, each in a batch of its own: of a refused batch, and of those behind it."""
    given_up: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    batch: Batch
    owner: int
    leader_epoch: int


class Story:
    """One partition, its present owner, and requests on the way, including those of earlier owners."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.partition = Partition()
        self.written = Written(first=self.random.choice((0, SEQUENCES - 7)))
        self.poison: set[int] = set()
        self.acknowledged: set[Batch] = set()
        self.lost: set[int] = set()
        self.made = 0
        self.owner = 0
        self.leader_epoch = 0
        """The one that the owner knows."""
        self.on_the_way: list[Request] = []
        self.under_way_max = self.random.choice((1, 3, BATCHES_MAX))
        self.loses_records = self.random.random() < 0.5
        self.lane = self._lane()

    def _lane(self) -> Lane[Batch]:
        made = Lane[Batch](PAUSE_MS, PAUSE_MAX_MS, under_way_max=self.under_way_max, next_sequence=self.written.first)
        for batch in self.written.batches:
            made.add(batch, len(batch.records))
        return made

    # ------------------------------------------------------------ the owner

    def open(self) -> None:
        if not self.lane.room or self.lane.is_stopped:
            return
        if self.written.parts:
            records = self.written.parts.pop(0)
        else:
            records = tuple(range(self.made, self.made + self.random.randint(1, 4)))
            self.made = records[-1] + 1
            self.poison |= {record for record in records if self.random.random() < 0.08}
        batch = Batch(self.written.epoch, self.lane.next_sequence, records)
        self.lane.add(batch, len(records))
        self.written.batches.append(batch)

    def send(self) -> None:
        for batch in self.lane.sendable(self.now_ms):
            assert batch.epoch == self.written.epoch, "nothing of an earlier epoch is sent"
            self.on_the_way.append(Request(batch, self.owner, self.leader_epoch))

    def settle(self) -> None:
        """Write down what has been stored, or what becomes of a batch in trouble."""
        stored = self.lane.forget_stored()
        for batch in stored:
            assert self.written.batches.pop(0) == batch, "what is stored is forgotten in order"
            self.written.first = batch.end
        remedy = self.lane.remedy
        if remedy is None:
            return
        left = self.lane.take_back()
        parts = [batch.records for batch in left]
        if remedy is Remedy.GIVE_UP:
            self.written.given_up += parts.pop(0)
        elif remedy is Remedy.SPLIT:
            at = split_at(len(parts[0]))
            parts[:1] = [parts[0][:at], parts[0][at:]]
        self.written = Written(self.written.epoch + 1, 0, [], parts + self.written.parts, self.written.given_up)

    def restart(self) -> None:
        """Another owner begins with what is written down; requests of this one may still arrive."""
        self.owner += 1
        self.lane = self._lane()

    # ------------------------------------------------------------ the network and the leader

    def arrive(self, *, is_answered: bool) -> None:
        """Have a request arrive, and perhaps its answer; the requests of one owner need not arrive in order."""
        if self.on_the_way:
            request = self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))
            if request.leader_epoch < self.partition.leader_epoch:
                self.answer(request, Trouble.UNREACHABLE)
                self.leader_epoch = self.partition.leader_epoch
                return
            trouble = self.partition.append(request.batch, self.poison)
            self.answer(request, trouble if is_answered else Trouble.UNREACHABLE)

    def time_out(self) -> None:
        """Report a request as failed although it is still on the way."""
        if self.on_the_way:
            self.answer(self.random.choice(self.on_the_way), Trouble.UNREACHABLE)

    def drop(self) -> None:
        """Lose a request."""
        if self.on_the_way:
            request = self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))
            self.answer(request, Trouble.UNREACHABLE)

    def answer(self, request: Request, trouble: Trouble | None) -> None:
        batch = request.batch
        if request.owner != self.owner or self.lane.sent(batch.sequence) is not batch:
            return  # of an earlier owner, or reported as failed before
        if trouble is None:
            self.lane.stored(batch.sequence)
            self.acknowledged.add(batch)
        else:
            self.lane.failed(batch.sequence, trouble, self.now_ms)

    def elect_unclean(self) -> None:
        """Lose the end of the log. Requests on the way carry the leader epoch before, so they are refused.

        A leader that knows nothing of the producer accepts any sequence. So where all is lost, an owner that begins
        with a batch that was acknowledged, and not written down as stored, may store those behind it twice: left out.
        """
        least = 1 if self.acknowledged & set(self.written.batches) else 0
        cut = self.random.randint(min(least, len(self.partition.log)), len(self.partition.log))
        self.lost |= {record for batch in self.partition.log[cut:] for record in batch.records}
        del self.partition.log[cut:]
        self.partition.leader_epoch += 1

    # ------------------------------------------------------------ the story

    def step(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.open, 6),
            (self.send, 8),
            (self.settle, 6),
            (lambda: self.arrive(is_answered=True), 8),
            (lambda: self.arrive(is_answered=False), 1),
            (self.time_out, 1),
            (self.drop, 1),
            (self.restart, 1),
        ]
        action = self.random.choices([each for each, _ in actions], [weight for _, weight in actions])[0]
        self.now_ms += self.random.choice((0, 1, 5))
        action()
        if self.loses_records and self.random.random() < 0.01:
            self.elect_unclean()
        self.check()

    def finish(self) -> None:
        """Have everything arrive: then each record is stored, or given up, or was lost by the leader."""
        for _ in range(3_000):
            if not (self.written.batches or self.written.parts):
                break
            self.now_ms += PAUSE_MAX_MS
            if self.written.parts:
                self.open()
            self.send()
            self.arrive(is_answered=True)
            self.settle()
        assert not self.written.batches, "what is open is stored at last"
        assert not self.written.parts
        self.check()
        found = {record for batch in self.partition.log for record in batch.records}
        assert found | self.lost | set(self.written.given_up) == set(range(self.made)), "no record is lost"

    def check(self) -> None:
        records = [record for batch in self.partition.log for record in batch.records]
        assert records == sorted(set(records)), "each record is stored once, in order"
        assert self.lost or not self.acknowledged - set(self.partition.log), "what is acknowledged is stored"
        assert set(self.written.given_up) <= self.poison, "only what is refused alone is given up"


def run_story(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.finish()


def test_each_record_is_stored_once_and_in_order() -> None:
    for seed in range(SEEDS):
        run_story(seed)


BUGS = {
    "seven batches are open": ("room", "BATCHES_MAX", "7"),
    "the first batch has company": ("sendable", "if self._is_known else 1", "if True else 1"),
    "a batch behind a failed one has company": ("failed", "_State.QUEUED, False", "_State.QUEUED, True"),
    "a batch that failed counts as stored": ("failed", "_State.QUEUED, False", "_State.STORED, False"),
    "what is behind a batch in trouble is sent": (
        "sendable",
        "if entry.trouble is not None or left < 1:\n            break",
        "if left < 1:\n            break\n        if entry.trouble is not None:\n            continue",
    ),
    "a refused batch does not wait for those before it": (
        "remedy",
        "if entry.state is not _State.STORED",
        "if entry.trouble is not None",
    ),
    "what is taken back is forgotten": ("take_back", "return taken", "return taken[:1]"),
    "a gap says that the producer is forgotten": ("failed", "is_first or trouble is not Trouble.FORGOTTEN", "True"),
    "a batch of two records is given up": ("remedy", "if split_at(first.records)", "if split_at(first.records - 1)"),
    "what is stored behind others is forgotten": (
        "forget_stored",
        "entry.state is not _State.STORED",
        "entry.state is _State.QUEUED",
    ),
    "a new epoch goes on with the sequences before": ("take_back", "next_sequence, False", "self.next_sequence, False"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    attribute, *texts = BUGS[name]
    changed: Any = Edit(*texts).of(getattr(Lane, attribute))
    with patch.object(Lane, attribute, changed):
        assert any(noticed(seed) for seed in range(SEEDS)), f"{SEEDS} histories did not notice that {name}"


def noticed(seed: int) -> bool:
    """Whether a history shows that something is wrong."""
    try:
        run_story(seed)
    except (AssertionError, InvariantBroken, StopIteration):
        return True
    return False
