"""A hand-out is of records that the leader has read: what becomes ready below them meanwhile waits for the next one."""

from __future__ import annotations

import pytest

from raylog.core.queues import events as ev
from raylog.core.queues.machine import QueueMachine
from raylog.core.queues.records import QueueChange
from raylog.protocol.queues import QueueVerdict
from tests.unit.core.queues.requests import acknowledged, opened, take

LATER_MS, READ_MS = 50, 5
Ranges = list[tuple[int, int]]


class Desk:
    """A queue of two records with different keys; the first waits for its retry."""

    def __init__(self, order: str) -> None:
        self.machine = QueueMachine(QueueChange(-1, (), {}, None), {"queue.order": order}, is_later=False)
        self.machine.loaded(0, 0)
        settings = {"queue.order": order}
        self.machine.step(opened("a", settings, 0, readable_end=2))
        self._scan(0, 0)
        assert self.take(0, 0, 1) == [(0, 1)]
        self.machine.step(acknowledged("a", [QueueVerdict(0, 1, ev.RETRY, 1, LATER_MS)], 1))
        self._scan(2, 1)

    def _scan(self, now_ms: int, offset: int) -> None:
        if self.machine.key_queues is not None:
            keys = [(offset, offset)]
            self.machine.step(ev.Scanned(cause="t", now_ms=now_ms, first=offset, end=offset + 1, keys=keys))

    def take(self, now_ms: int, first: int, end: int) -> Ranges:
        out = self.machine.step(take("a", (first, end), 10, now_ms))
        [hand] = [effect for effect in out.now if isinstance(effect, ev.Hand)]
        return [(row.first, row.end) for row in hand.ranges]


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_record_whose_wait_ends_amid_the_read_is_not_handed_out_with_it(order: str) -> None:
    desk = Desk(order)
    first = desk.machine.next_offset(2)
    assert first == 1
    handed = desk.take(LATER_MS + READ_MS, first, 2)
    assert all(low >= first for low, _ in handed), "the leader has not read what lies below"
    again = desk.machine.next_offset(2)
    assert again == 0
    assert (0, 1) in desk.take(LATER_MS + READ_MS, again, 1)
