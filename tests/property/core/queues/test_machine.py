"""A queue under random workers, clocks and leaders keeps its promises (Q1 to Q8), by a slow second account of them."""

from collections import Counter, defaultdict
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raylog.core.decision import Refuse, Reply
from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange, QueueState
from raylog.core.queues.states import AVAILABLE, TERMINAL
from raylog.protocol.message import read
from raylog.protocol.queues import QueueVerdict
from tests.property.core.queues.letter_topics import LetterTopics
from tests.unit.core.queues.requests import acknowledged, opened, take

MEMBERS = ("a", "b", "c")
RECORDS = 40
KEYS = 4
LATE_MS = 90_000
"""A pause above `queue.retry.max.ms`."""


class Worked(RuleBasedStateMachine):
    """One queue, its keeper's state, its workers, and what they saw."""

    topic: ClassVar[dict[str, str]] = {
        "queue.delivery.limit": "3",
        "queue.acquired.max": "12",
        "queue.window.max": "30",
        "queue.retry.max.ms": "60000",
    }
    settings_of_group: ClassVar[dict[str, str]] = {"queue.retry.backoff": "5s 20s", "queue.delivery.limit": "3"}
    gaps: ClassVar[tuple[tuple[int, int], ...]] = ()
    """Ranges of which the leader knows that no member has work with them: aborted, markers, cleaned away."""

    @initialize()
    def begin(self) -> None:
        self.now = 1_000
        self.request = 0
        self.stored = QueueState("jobs")
        self.stored.apply(QueueChange(0, (), {}, None))
        self.handed: Counter[int] = Counter()
        self.held: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        """By member: offset -> (count, until)."""
        self.done: set[int] = set()
        self.not_before: dict[int, int] = {}
        self.letters = LetterTopics(refuses={6, 17, 18}, drops="drop" in self.topic.values())
        self.accepted: set[int] = set()
        self.crashes = 0
        self.acks: dict[int, set[int]] = {}
        self.started = 0
        self.load()

    def load(self) -> None:
        self.open: list[Any] = []
        """Effects that wait for the log, each with how many changes have to be stored first."""
        self.pending: list[QueueChange] = []
        self.held.clear()
        snapshot = read(QueueChange, self.stored.snapshot().to_wire(), "A change")
        self.machine = QueueMachine(snapshot, self.topic, is_later=False)
        self.take_in(self.machine.loaded(self.now, 5_000_000 + self.now))
        for member in MEMBERS:
            self.open_as(member)

    def number(self) -> int:
        self.request += 1
        return self.request

    def feed(self, kind: Any, **fields: Any) -> list[Any]:
        return self.step(kind(cause="test", now_ms=self.now, **fields))

    def step(self, event: ev.Event) -> list[Any]:
        had_work = self.has_work()
        effects = self.take_in(self.machine.step(event))
        if not had_work and self.has_work():
            assert any(isinstance(effect, ev.Wake) for effect in effects), f"{event} wakes no fetch"
        return effects

    def open_as(self, member: str) -> None:
        self.step(opened(member, self.settings_of_group, self.now, self.number()))

    def report(self, member: str, *verdicts: QueueVerdict, request: int = 0) -> list[Any]:
        return self.step(acknowledged(member, verdicts, self.now, request or self.number()))

    def has_work(self) -> bool:
        """Whether a fetch that waits could go on: hand something out, or read what is next."""
        return self.machine.next_offset(RECORDS) is not None or self.machine.next_scan(RECORDS) is not None

    def take_in(self, outbox: Any) -> list[Any]:
        for effect in outbox.now:
            if isinstance(effect, ev.StoreChange):
                self.pending.append(read(QueueChange, effect.change.to_wire(), "A change"))
            elif isinstance(effect, ev.FindLetterBox):
                self.open.append((0, effect))
        self.open += [(len(self.pending), effect) for effect in outbox.after_sync]
        self.machine.validate()
        return list(outbox.now)

    def store(self, changes: int) -> None:
        for change in self.pending[:changes]:
            self.stored.apply(change)
        self.pending = self.pending[changes:]
        ready = [effect for after, effect in self.open if after <= changes]
        self.open = [(after - changes, effect) for after, effect in self.open if after > changes]
        for effect in ready:
            self.carry_out(effect)

    def carry_out(self, effect: Any) -> None:
        match effect:
            case ev.NoteStored():
                self.feed(ev.ChangeStored, number=effect.number)
            case ev.FindLetterBox():
                box = self.letters.found(effect)
                self.feed(ev.LetterBoxFound, topic=effect.topic, box=box, is_later=effect.is_later)
            case ev.SendLetters():
                kind, fields = self.letters.answer(effect)
                self.feed(kind, sequence=effect.sequence, is_later=effect.is_later, **fields)
            case Reply() if effect.request in self.acks:
                self.done |= self.acks.pop(effect.request)
            case Reply() | Refuse():
                pass
            case _:
                raise AssertionError(effect)

    # ------------------------------------------------------------ what happens

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 10), read_ms=st.sampled_from((0, 0, 10, 1_000, 10_000)))
    def fetch(self, member: str, most: int, read_ms: int) -> None:
        """`read_ms`: how long the leader reads what is to be handed out: waits and locks may end meanwhile."""
        scan = self.machine.next_scan(RECORDS)
        if scan is not None and self.machine.next_offset(RECORDS) is None:
            end = min(RECORDS, scan + 9)
            keys = [(offset, offset % KEYS) for offset in range(scan, end) if offset % 7 != 5]
            tries = [(offset, self.earlier(offset)) for offset in range(scan, end) if self.earlier(offset)]
            self.feed(ev.Scanned, first=scan, end=end, keys=keys, tries=tries)
        first = self.machine.next_offset(RECORDS)
        if first is None:
            return
        end = min(RECORDS, first + 15)
        gaps = [(max(low, first), min(high, end)) for low, high in self.gaps if low < end and high > first]
        self.now += read_ms
        effects = self.step(take(member, (first, end), most, self.now, self.number(), gaps))
        hands = [effect for effect in effects if isinstance(effect, ev.Hand)]
        assert len(hands) == 1
        total = 0
        for row in hands[0].ranges:
            total += row.end - row.first
            assert first <= row.first < row.end <= end
            for offset in range(row.first, row.end):
                self.see(member, offset, row.count)
        assert total <= most

    def see(self, member: str, offset: int, count: int) -> None:
        for other, held in self.held.items():  # Q1
            if offset in held:
                assert held[offset][1] <= self.now, f"{offset} is at {other}, and now at {member} too"
                del held[offset]
        assert offset not in self.done, f"{offset} was acknowledged"  # Q2
        assert not self.is_gap(offset), f"{offset} has no record, and {member} is to answer for it"
        assert offset not in self.letters.copies, f"{offset} has a copy, and is handed out here too"
        assert self.not_before.get(offset, 0) <= self.now, f"{offset} waits"  # Q8
        self.handed[offset] += 1
        tries = self.handed[offset] + self.earlier(offset)
        assert tries <= 3 + self.crashes, f"{offset} was handed out too often"  # Q4
        assert count > self.earlier(offset), f"{offset} forgets how often it was handed out before"
        self.held[member][offset] = (count, self.now + 30_000)
        self.check_order(member, offset)

    def check_order(self, member: str, offset: int) -> None:
        """Nothing without keys."""

    def earlier(self, offset: int) -> int:
        """How often a record was handed out before it was copied here: none is a copy."""
        return 0

    def is_gap(self, offset: int) -> bool:
        """Whether there is no record; without keys the leader knows it of whole batches."""
        return any(low <= offset < high for low, high in self.gaps)

    @rule(member=st.sampled_from(MEMBERS), kind=st.sampled_from((1, 1, 2, 3, 4, 5, 5, 5, 6)), pick=st.integers(0, 11))
    def acknowledge(self, member: str, kind: int, pick: int) -> None:
        held = sorted(self.held[member])
        if not held:
            return
        offset = held[pick % len(held)]
        count, until = self.held[member][offset]
        request = self.number()
        is_valid = until > self.now
        delay_ms = (-1, 2_000, LATE_MS)[pick % 3] if kind == ev.RETRY else -1
        if kind in (ev.ACCEPT, ev.REJECT):
            self.acks[request] = {offset} if is_valid and kind == ev.ACCEPT else set()
        effects = self.report(member, QueueVerdict(offset, offset + 1, kind, count, delay_ms), request=request)
        assert not [effect for effect in effects if isinstance(effect, (Reply, Refuse))]
        answer: list[Any] = [row for _, row in self.open if isinstance(row, Reply) and row.request == request]
        if kind == ev.RETURN and not is_valid and not answer[0].result[0]:  # too late, and no member has got it since
            after = self.machine.book.at(offset)
            assert (after.state, after.tries) == (AVAILABLE, count - 1)
            self.handed[offset] -= 1
            del self.held[member][offset]
            return
        if kind == ev.ACCEPT and not is_valid and offset < self.machine.book.start:
            return  # how it was finished is not known any more: a repeated acknowledgement is no failure
        assert bool(answer[0].result[0]) == (not is_valid), (answer, is_valid)
        if not is_valid:
            return
        if kind == ev.RENEW:
            self.held[member][offset] = (count, self.now + 30_000)
            return
        del self.held[member][offset]
        if kind == ev.ACCEPT:
            self.accepted.add(offset)
        if kind == ev.RETURN:
            self.handed[offset] -= 1
        if kind == ev.RETRY and count < 3:
            self.not_before[offset] = self.now + (delay_ms if delay_ms > 0 else {1: 5_000, 2: 20_000}[count])

    @rule(member=st.sampled_from(MEMBERS))
    def reject_all(self, member: str) -> None:
        """A member rejects all that it has, at once: their letters are a batch."""
        held = [(offset, count) for offset, (count, until) in self.held[member].items() if until > self.now]
        verdicts = [QueueVerdict(offset, offset + 1, ev.REJECT, count) for offset, count in sorted(held)]
        if verdicts:
            self.report(member, *verdicts)
        self.held[member].clear()

    @rule(member=st.sampled_from(MEMBERS), other=st.sampled_from(MEMBERS))
    def stranger_acknowledges(self, member: str, other: str) -> None:
        """A verdict on what another member holds changes nothing."""
        held = [offset for offset, (_, until) in self.held[other].items() if until > self.now]
        if member == other or not held:
            return
        verdict = QueueVerdict(min(held), min(held) + 1, ev.RELEASE)
        self.report(member, verdict)
        assert self.machine.book.at(min(held)).member == other

    @rule(ms=st.sampled_from((10, 1_000, 10_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.feed(ev.Tick)

    @rule(member=st.sampled_from(MEMBERS))
    def member_opens_again(self, member: str) -> None:
        """It knows of no lock that it had before: others may get the records."""
        self.open_as(member)
        self.held[member].clear()
        assert not self.machine.book.held_by(member)

    @rule(changes=st.integers(0, 3))
    def log_advances(self, changes: int) -> None:
        self.store(min(changes, len(self.pending)))

    @rule(member=st.sampled_from(MEMBERS))
    def member_goes(self, member: str) -> None:
        self.feed(ev.MemberLeft, member=member)
        self.held[member].clear()
        self.open_as(member)

    @rule(acquired=st.sampled_from(("4", "12")), order=st.sampled_from(("none", "key")))
    def topic_is_changed(self, acquired: str, order: str) -> None:
        """The topic's settings change beside members, which were given an order that stays."""
        before = self.machine.policy
        topic = {**self.topic, "queue.acquired.max": acquired, "queue.order": order}
        self.feed(ev.Reconfigured, topic=topic)
        after = self.machine.policy
        assert (after.acquired_max, after.by_key) == (int(acquired), before.by_key)
        assert after.backoff == before.backoff, "the group's own settings count more"

    @rule(limit=st.sampled_from((0, 3, 8, 14, 40, -1)))
    def letter_topics_change(self, limit: int) -> None:
        """The topics of letters and copies take other sizes from now on; or there are new ones."""
        self.letters.is_replaced |= limit < 0
        self.letters.limit = max(limit, 0) or self.letters.limit

    @rule(kept=st.integers(0, 2))
    def leader_is_replaced(self, kept: int) -> None:
        """Some changes that were not answered yet survive, the others are lost."""
        for change in self.pending[:kept]:
            self.stored.apply(change)
        self.crashes += 1
        self.not_before = {}  # what waited may be known only to the leader that was replaced
        self.load()

    # ------------------------------------------------------------ what always holds

    @invariant()
    def start_never_falls(self) -> None:
        if hasattr(self, "machine"):
            assert self.machine.book.start >= self.started  # Q7
            self.started = self.stored.start
            letters = self.letters
            assert len(set(letters.dead)) == len(letters.dead), "a dead letter is there twice"  # Q6
            assert len(set(letters.copies)) == len(letters.copies), "a copy is there twice"
            assert not set(letters.copies) & (self.done | set(letters.dead)), "a copy of what is finished"
            assert not letters.refuses.intersection(letters.dead)
            assert letters.refuses.issuperset(letters.aside), "what the topic takes is not undeliverable"

    @invariant()
    def what_is_stored_is_what_is_known(self) -> None:
        if not hasattr(self, "machine") or self.pending:
            return
        again = QueueMachine(self.stored.snapshot(), self.topic, is_later=False)
        again.loaded(self.now, 5_000_000 + self.now)
        finished = {offset for offset in range(RECORDS) if self.machine.book.at(offset).state in TERMINAL}
        assert finished == {offset for offset in range(RECORDS) if again.book.at(offset).state in TERMINAL}

    def settle(self) -> None:
        """Store everything, and what follows from it, until only time is waited for."""
        for _ in range(300):
            self.store(len(self.pending))
            if not self.pending and not self.open:
                return
        raise AssertionError("letters are sent again and again")

    def teardown(self) -> None:
        """Without further trouble everything is finished at last: Q3, and Q6 for all that is dead."""
        if not hasattr(self, "machine"):
            return
        self.settle()
        self.letters.limit = 0 if self.letters.drops else 1_000
        self.letters.is_replaced = False
        for _ in range(400):
            self.time_passes(21_000 + 10_000)
            self.settle()
            self.fetch(MEMBERS[0], 10, 0)
            for offset, (count, _) in sorted(self.held[MEMBERS[0]].items()):
                verdict = QueueVerdict(offset, offset + 1, ev.ACCEPT, count)
                self.report(MEMBERS[0], verdict)
                self.accepted.add(offset)
            self.held[MEMBERS[0]].clear()
            if self.machine.book.start == RECORDS and not self.pending:
                break
        assert self.machine.book.start == RECORDS, self.machine.book.pieces(0, RECORDS)
        assert self.machine.book.counts[AVAILABLE] == 0
        letters = {*self.letters.dead, *self.letters.aside, *self.letters.copies}
        finished = self.accepted | letters | {at for at in range(RECORDS) if self.is_gap(at)}
        assert finished == set(range(RECORDS)), set(range(RECORDS)) - finished
        assert (self.machine.next_due_ms() or self.now) > self.now - 60_000


class WorkedDropping(Worked):
    """The same where bodies are dropped that are too large for the dead-letter topic."""

    topic: ClassVar[dict[str, str]] = {**Worked.topic, "errors.deadletterqueue.on.failure": "drop"}


class WorkedByKey(Worked):
    """The same with order per key (Q5)."""

    settings_of_group: ClassVar[dict[str, str]] = {**Worked.settings_of_group, "queue.order": "key"}

    def is_gap(self, offset: int) -> bool:
        return offset % 7 == 5

    def check_order(self, member: str, offset: int) -> None:
        key = offset % KEYS
        for other, held in self.held.items():
            for at, (_, until) in held.items():
                if at % KEYS == key and at != offset and until > self.now:
                    assert other == member, f"key {key} is at {other} and {member}"
                    assert at < offset, f"{offset} overtakes {at}"
        for earlier in range(offset % KEYS, offset, KEYS):
            state = self.machine.book.at(earlier)
            assert state.state in (*TERMINAL, 3) or earlier in self.held[member], (
                f"{offset} overtakes {earlier} {state}"
            )


class WorkedWithTransactions(Worked):
    """The same where transactions were aborted, and markers lie between."""

    gaps: ClassVar[tuple[tuple[int, int], ...]] = ((0, 2), (7, 8), (9, 16), (31, 33), (39, 40))


class WorkedRetryTopic(Worked):
    """The same in a retry topic, whose records were handed out elsewhere before."""

    topic: ClassVar[dict[str, str]] = {**Worked.topic, "queue.retry.of": "jobs"}

    def earlier(self, offset: int) -> int:
        return offset % 3


class WorkedRetryTopicByKey(WorkedRetryTopic, WorkedByKey):
    """Both."""

    settings_of_group: ClassVar[dict[str, str]] = WorkedByKey.settings_of_group


Worked.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
WorkedByKey.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
WorkedDropping.TestCase.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
TestWorked = Worked.TestCase
TestWorkedDropping = WorkedDropping.TestCase
TestWorkedByKey = WorkedByKey.TestCase
WorkedWithTransactions.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestWorkedWithTransactions = WorkedWithTransactions.TestCase
WorkedRetryTopic.TestCase.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
WorkedRetryTopicByKey.TestCase.settings = settings(max_examples=30, stateful_step_count=60, deadline=None)
TestWorkedRetryTopic = WorkedRetryTopic.TestCase
TestWorkedRetryTopicByKey = WorkedRetryTopicByKey.TestCase
