"""How often a record was handed out: what a crash may lose of it, and what does not count."""

from __future__ import annotations

import pytest

from raylog.base.errors import InvalidRequest, LimitReached, RaylogError
from raylog.core.decision import Refuse
from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange, QueueState
from raylog.protocol.message import read
from raylog.protocol.queues import QueueVerdict
from tests.unit.core.queues.requests import acknowledged, opened, take


class Shelf:
    """A queue of one record, whose changes are stored when the test says so."""

    def __init__(self, stored: QueueState | None = None) -> None:
        self.now_ms = 1_000
        self.stored = stored or QueueState("jobs")
        if stored is None:
            self.stored.apply(QueueChange(0, (), {}, None))
        snapshot = read(QueueChange, self.stored.snapshot().to_wire(), "A change")
        self.machine = QueueMachine(snapshot, {}, is_later=False)
        self.waiting: list[object] = []
        self.take_in(self.machine.loaded(self.now_ms, self.now_ms))

    def take_in(self, out: object) -> list[object]:
        now = list(out.now)  # type: ignore[attr-defined]
        self.waiting += [effect for effect in now if isinstance(effect, ev.StoreChange)]
        self.waiting += out.after_sync  # type: ignore[attr-defined]
        return now

    def feed(self, event: ev.Event) -> list[object]:
        return self.take_in(self.machine.step(event))

    def open(self, member: str) -> None:
        self.feed(opened(member, {}, self.now_ms, readable_end=1))

    def opening(self, member: str) -> RaylogError | None:
        """Open it as a member; the refusal, or nothing."""
        out = self.machine.step(opened(member, {}, self.now_ms, readable_end=1))
        self.take_in(out)
        return next((effect.error for effect in (*out.now, *out.after_sync) if isinstance(effect, Refuse)), None)

    def take(self, member: str) -> int:
        """Return the count of the hand-out; 0 = the record is not handed out now."""
        if self.machine.next_offset(1) is None:
            return 0
        effects = self.feed(take(member, (0, 1), 1, self.now_ms))
        return next((each.ranges[0].count for each in effects if isinstance(each, ev.Hand) and each.ranges), 0)

    def leave(self, member: str) -> None:
        self.feed(ev.MemberLeft(cause="t", now_ms=self.now_ms, member=member))

    def verdict(self, member: str, kind: int, delay_ms: int = -1) -> None:
        self.feed(acknowledged(member, [QueueVerdict(0, 1, kind, 0, delay_ms)], self.now_ms))

    def store(self) -> None:
        """Everything that waits is stored."""
        waiting, self.waiting = self.waiting, []
        for effect in waiting:
            if isinstance(effect, ev.StoreChange):
                self.stored.apply(read(QueueChange, effect.change.to_wire(), "A change"))
            elif isinstance(effect, ev.NoteStored):
                self.feed(ev.ChangeStored(cause="t", now_ms=self.now_ms, number=effect.number))

    def replaced(self) -> Shelf:
        """The leader is replaced; what is not stored is lost."""
        return Shelf(self.stored)


def test_one_crash_loses_one_hand_out_at_most() -> None:
    shelf = Shelf()
    shelf.open("a")
    shelf.open("b")
    shelf.store()
    assert shelf.take("a") == 1
    shelf.leave("a")
    assert shelf.take("b") == 0, "the first count is on its way"
    shelf.store()
    assert shelf.take("b") == 2
    after = shelf.replaced()
    after.open("c")
    assert after.take("c") == 2, "only the hand-out to b is lost"


def test_a_record_that_is_retried_at_once_waits_until_its_count_is_stored() -> None:
    shelf = Shelf()
    shelf.open("a")
    assert shelf.take("a") == 1
    shelf.verdict("a", ev.RETRY, 0)
    assert shelf.take("a") == 0
    shelf.store()
    assert shelf.take("a") == 2


def test_a_hand_out_that_is_returned_with_a_pause_does_not_count() -> None:
    shelf = Shelf()
    shelf.open("a")
    for _ in range(20):
        assert shelf.take("a") == 1
        shelf.verdict("a", ev.RETURN, 1_000)
        assert shelf.take("a") == 0
        shelf.store()
        shelf.now_ms += 1_001
        shelf.feed(ev.Tick(cause="t", now_ms=shelf.now_ms))


def test_a_queue_has_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.core.queues.machine.MEMBERS_MAX", 2)
    shelf = Shelf()
    assert isinstance(shelf.opening("m" * 1025), InvalidRequest)
    assert shelf.opening("a") is shelf.opening("b") is shelf.opening("a") is None
    assert isinstance(shelf.opening("c"), LimitReached)
    shelf.leave("a")
    assert shelf.opening("c") is None
