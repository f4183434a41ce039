"""The consumers' view of leases beside the leader's book: whatever happens to a lease, no consumer believes in more.

Two consumers with the shipped `LeaseBook` and the leader's machine, on a virtual clock. Requests and answers lie in the
network for as long as the run wants; a consumer that does nothing for a while stands still.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raylog.client.queues.leases import LeaseBook
from raylog.client.queues.message import QueueMessage
from raylog.client.queues.verdicts import Settled, taken_verdicts
from raylog.client.types import Record
from raylog.core.decision import Reply
from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange, QueueState
from raylog.core.queues.states import ACQUIRED, ARCHIVING, TERMINAL
from raylog.protocol.queues import (
    QueueAcknowledgeReply,
    QueueFetchReply,
    QueueVerdict,
)
from tests.unit.core.queues.requests import acknowledged, opened, take

RECORDS = 12
WAIT_MS = 20_000
STEPS_MS = (1, 300, 900, 2_100, 5_000)


class Leader:
    """The machine; what it decides is stored at once."""

    def __init__(self, topic: dict[str, str]) -> None:
        self.now = 1_000
        self.topic = topic
        self.stored = QueueState("jobs")
        self.stored.apply(QueueChange(0, (), {}, None))
        self.load()

    def load(self) -> None:
        self.machine = QueueMachine(self.stored.snapshot(), self.topic, is_later=False)
        self.take_in(self.machine.loaded(self.now, self.now))

    def feed(self, kind: Any, **fields: Any) -> list[Any]:
        return self.step(kind(cause="test", now_ms=self.now, **fields))

    def step(self, event: ev.Event) -> list[Any]:
        return self.take_in(self.machine.step(event))

    def take_in(self, outbox: Any) -> list[Any]:
        effects = [*outbox.now, *outbox.after_sync]
        for effect in effects:
            if isinstance(effect, ev.StoreChange):
                self.stored.apply(effect.change)
        for effect in effects:
            if isinstance(effect, ev.NoteStored):
                self.feed(ev.ChangeStored, number=effect.number)
        return effects

    def hand(self, member: str) -> ev.Hand | None:
        first = self.machine.next_offset(RECORDS)
        if first is None:
            return None
        effects = self.step(take(member, (first, RECORDS), 5, self.now))
        return next(effect for effect in effects if isinstance(effect, ev.Hand))

    def acknowledge(self, member: str, rows: list[QueueVerdict]) -> QueueAcknowledgeReply:
        effects = self.step(acknowledged(member, rows, self.now))
        result: Any = next(row for row in effects if isinstance(row, Reply)).result
        return QueueAcknowledgeReply(*result)


class Worker:
    """One consumer: what `QueueSource` and `QueueEngine` do with a lease, step by step."""

    def __init__(self, name: str, leader: Leader) -> None:
        self.name = name
        self.leader = leader
        self.book = LeaseBook()
        self.buffer: deque[QueueMessage] = deque()
        self.settled: deque[Settled] = deque()
        self.taken: list[QueueMessage] = []
        self.parked: tuple[int, float, int] | None = None
        """Of a fetch at the leader: when it came there, when it was sent, in which session."""
        self.answer: tuple[QueueFetchReply, float, int] | None = None
        self.request: list[QueueVerdict] | None = None
        self.reply: tuple[QueueAcknowledgeReply, float, int] | None = None
        self.is_unaware = False
        """Whether the leader has forgotten its locks, and it was not notified yet."""

    def now(self) -> float:
        return self.leader.now / 1000

    def open(self) -> None:
        self.book.lose_all()
        self.parked = self.answer = self.request = self.reply = None
        self.leader.step(opened(self.name, {}, self.leader.now))
        self.is_unaware = False

    # As `Holder`

    def holds(self, message: QueueMessage) -> bool:
        return self.book.holds(message, self.now())

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        self.book.drop(message)
        self.settled.append((message.offset, message._lock.hand, kind, delay_ms, reason))

    def extend(self, message: QueueMessage, lock_ms: int) -> None:
        self.settled.append(self.book.request(message, lock_ms))

    def forget(self, message: QueueMessage) -> None:
        message._is_settled = True
        self.book.drop(message)
        if self.book.is_current(message):
            self.settled.append((message.offset, message._lock.hand, ev.RETURN, -1, ""))

    # Steps

    def fetch(self) -> None:
        if self.parked is None and self.answer is None:
            self.parked = self.leader.now, self.now(), self.book.session

    def serve(self) -> None:
        """The leader looks at the fetch that waits there."""
        if self.parked is None:
            return
        came, sent_s, session = self.parked
        if self.leader.now - came > WAIT_MS:
            self.parked = None
            return
        hand = self.leader.hand(self.name)
        if hand is None or not hand.ranges:
            return
        waited_ms = max(0, self.leader.now - came - 1)
        self.parked, self.answer = None, (QueueFetchReply(hand.ranges, hand.lock_ms, waited_ms), sent_s, session)

    def read(self) -> None:
        if self.answer is None:
            return
        (reply, sent_s, session), self.answer = self.answer, None
        if session != self.book.session:
            return
        locks = self.book.locks(self, reply, sent_s, self.now())  # type: ignore[arg-type]
        if not locks:
            for row in reply.ranges:
                self.settled += [
                    (offset, (row.count, row.lease), ev.RETURN, -1, "") for offset in range(row.first, row.end)
                ]
            return
        messages = [
            QueueMessage(Record("jobs", 0, offset, 0, None, b"", ()), lock)
            for row, lock in zip(reply.ranges, locks, strict=True)
            for offset in range(row.first, row.end)
        ]
        self.book.take_in(messages)
        self.buffer.extend(messages)

    def take(self) -> QueueMessage | None:
        while self.buffer:
            message = self.buffer.popleft()
            if message._is_settled:
                continue
            if message.is_locked:
                self.taken.append(message)
                return message
            self.forget(message)
        return None

    def renew(self) -> None:
        self.settled += self.book.renewals(self.now())

    def send(self) -> None:
        if self.request is None:
            self.request = taken_verdicts(self.settled, 100) or None

    def arrive(self) -> None:
        """The request is carried out at the leader; one that was sent again is carried out again."""
        if self.request is not None:
            sent_s = self.now()
            self.reply = self.leader.acknowledge(self.name, self.request), sent_s, self.book.session

    def learn(self) -> None:
        """The answer is read."""
        if self.reply is None or self.request is None:
            return
        (reply, sent_s, session), self.reply = self.reply, None
        if session == self.book.session:
            self.book.answered(self.request, reply, sent_s)
        self.request = None


class Leases(RuleBasedStateMachine):
    """All courses that a lease can take."""

    topic: ClassVar[dict[str, str]] = {
        "queue.lock.ms": "2000",
        "queue.lock.max.ms": "3500",
        "queue.delivery.limit": "-1",
    }

    @initialize()
    def begin(self) -> None:
        self.leader = Leader(self.topic)
        self.workers = {name: Worker(name, self.leader) for name in ("a", "b")}
        for worker in self.workers.values():
            worker.open()

    @rule(name=st.sampled_from("ab"), steps=st.integers(1, 4))
    def works(self, name: str, steps: int) -> None:
        for step in ("fetch", "serve", "read", "take")[:steps]:
            getattr(self.workers[name], step)()
            self.holds_no_more_than_the_leader_says()

    @rule(name=st.sampled_from("ab"), steps=st.integers(1, 4))
    def reports(self, name: str, steps: int) -> None:
        for step in ("renew", "send", "arrive", "learn")[:steps]:
            getattr(self.workers[name], step)()
            self.holds_no_more_than_the_leader_says()

    @rule(name=st.sampled_from("ab"), steps=st.integers(0, 4))
    def goes_on(self, name: str, steps: int) -> None:
        """So many turns of half a second in which it does all that a consumer does."""
        for _ in range(steps):
            self.leader.now += 500
            go_on(self.workers[name])
            self.holds_no_more_than_the_leader_says()

    @rule(name=st.sampled_from("ab"), kind=st.sampled_from((1, 2, 3, 5)), pick=st.integers(0, 4))
    def settles(self, name: str, kind: int, pick: int) -> None:
        worker = self.workers[name]
        open_ones = [message for message in worker.taken if not message.is_settled]
        if open_ones:
            message = open_ones[pick % len(open_ones)]
            message._settle(kind, 500 if kind == ev.RETRY else -1)

    @rule(name=st.sampled_from("ab"), seconds=st.sampled_from((0.5, 4.0, 20.0)))
    def extends(self, name: str, seconds: float) -> None:
        for message in self.workers[name].taken[-1:]:
            if not message.is_settled:
                message.extend(seconds)

    @rule(ms=st.sampled_from(STEPS_MS))
    def time_passes(self, ms: int) -> None:
        self.leader.now += ms
        if ms < 1_000:
            self.leader.feed(ev.Tick)

    @rule(lock_ms=st.sampled_from(("1000", "2000", "6000")))
    def topic_is_changed(self, lock_ms: str) -> None:
        self.leader.topic = {**self.leader.topic, "queue.lock.ms": lock_ms}
        self.leader.feed(ev.Reconfigured, topic=self.leader.topic)

    @rule(name=st.sampled_from("ab"))
    def opens_again(self, name: str) -> None:
        self.workers[name].open()

    @rule()
    def leader_is_replaced(self) -> None:
        self.leader.now += 1  # a leader numbers its leases from the time at which it loads
        self.leader.load()
        for worker in self.workers.values():
            worker.is_unaware = True
            worker.parked = worker.answer = worker.reply = None

    @rule(name=st.sampled_from("ab"))
    def connection_ends(self, name: str) -> None:
        self.leader.feed(ev.MemberLeft, member=name)
        self.workers[name].open()

    @invariant()
    def holds_no_more_than_the_leader_says(self) -> None:
        if not hasattr(self, "workers"):
            return
        self.leader.machine.validate()
        for worker in self.workers.values():
            if worker.is_unaware:
                if self.leader.machine.members.get(worker.name) is None:
                    worker.open()
                continue
            for message in [*worker.buffer, *worker.taken]:
                if not message.is_locked:
                    continue
                cell = self.leader.machine.book.at(message.offset)
                where = f"{worker.name} believes in {message!r} until {message._lock.deadline}, and it is {cell}"
                assert (cell.state, cell.member, cell.tries) == (ACQUIRED, worker.name, message.delivery_count), where
                assert cell.until_ms >= self.leader.now, where

    def teardown(self) -> None:
        """Without further stalls all is handed out and finished."""
        if not hasattr(self, "workers"):
            return
        self.leader.topic = {**self.leader.topic, "queue.lock.ms": "2000"}
        self.leader.feed(ev.Reconfigured, topic=self.leader.topic)
        for worker in self.workers.values():
            worker.open()
        for _ in range(200):
            self.leader.now += 400
            for worker in self.workers.values():
                go_on(worker)
                for message in worker.taken:
                    if not message.is_settled:
                        message.ack()
                worker.taken.clear()
        book = self.leader.machine.book
        left = [piece for piece in book.pieces(book.start, book.end) if piece[2].state not in (ARCHIVING, *TERMINAL)]
        assert book.end == RECORDS
        assert not left, left


Leases.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase


def go_on(worker: Worker) -> None:
    """One turn of a consumer that does not stand still."""
    worker.fetch()
    worker.serve()
    worker.read()
    worker.take()
    worker.renew()
    worker.send()
    worker.arrive()
    worker.learn()


def stalled_once(*, lock_ms: int, stall_ms: int, limit: str = "5", handler_turns: int = 1) -> tuple[Counter[int], int]:
    """One worker that stands still once: how often each record was handled, and how many became dead letters."""
    leader = Leader({"queue.lock.ms": str(lock_ms), "queue.delivery.limit": limit})
    worker = Worker("a", leader)
    worker.open()
    handled: Counter[int] = Counter()
    for turn in range(400):
        leader.now += 100
        if turn == 3:
            for _ in range(stall_ms // 100):  # the leader goes on, and serves the fetch that waits there
                leader.now += 100
                leader.feed(ev.Tick)
                worker.serve()
        go_on(worker)
        if worker.taken and turn % handler_turns == 0:
            message = worker.taken.pop(0)
            handled[message.offset] += 1
            message.ack()
    return handled, leader.machine.counters["dead_letters"] + leader.machine.letters.count


def test_one_stall_longer_than_the_lock_loses_nothing() -> None:
    for lock_ms, stall_ms in ((2_000, 5_000), (2_000, 19_000), (6_000, 9_000), (10_000, 15_000), (30_000, 40_000)):
        handled, dead = stalled_once(lock_ms=lock_ms, stall_ms=stall_ms)
        assert (set(handled), dead) == (set(range(RECORDS)), 0), (lock_ms, stall_ms, handled)


def test_a_stall_costs_what_no_handler_saw_none_of_its_tries() -> None:
    handled, dead = stalled_once(lock_ms=2_000, stall_ms=19_000, limit="2")
    assert dead == 0
    assert set(handled) == set(range(RECORDS))
