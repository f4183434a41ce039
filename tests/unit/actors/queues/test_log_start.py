"""A log that begins later while members hold records below its start: what waits is ended once, and the queue rests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.queues.queue import Queue
from raylog.core.queues import events as ev
from tests.simulation.outbox import loop as virtual
from tests.unit.actors.queues.test_silent_members import BATCH, RECORDS, Bench, count

TURNS = 500
"""Of the loop: a queue that does not rest takes a step in each few of them."""


class Steps:
    """Counts the events of a queue that say where the log begins."""

    def __init__(self, queue: Queue) -> None:
        self.log_starts = 0
        self._feed = queue._feed
        counted: Any = queue
        counted._feed = self.feed

    def feed(self, event: ev.Event) -> None:
        self.log_starts += isinstance(event, ev.LogStarts)
        assert self.log_starts <= TURNS, "it does not rest, and nothing else runs on the loop"
        self._feed(event)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("order", ["none", "key"])
def test_what_a_member_holds_below_the_start_does_not_keep_a_queue_busy(order: str) -> None:
    async def story() -> None:
        bench = Bench(**{"queue.order": order, "queue.lock.ms": "60000"})
        await bench.queue.load()
        for member in ("holder", "other"):
            await bench.open(member)
        held = count(await bench.fetch("holder", max_records=BATCH))
        assert held > 0
        assert bench.queue.machine is not None
        bench.queue._host.log = SimpleNamespace(log_start_offset=RECORDS)
        steps = Steps(bench.queue)
        waiting = bench.fetch("other")
        await turns()
        assert not waiting.done()
        assert steps.log_starts == 1
        assert bench.queue.machine.book.start < RECORDS, "the holder may still settle what it has"
        bench.queue.end("the test is over")

    virtual.run(story())


def test_records_given_back_below_the_start_end_at_once() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.queue.load()
        for member in ("holder", "other"):
            await bench.open(member)
        assert count(await bench.fetch("holder", max_records=BATCH)) > 0
        assert bench.queue.machine is not None
        bench.queue._host.log = SimpleNamespace(log_start_offset=RECORDS)
        waiting = bench.fetch("other", max_wait_ms=5_000)  # longer than the holder's locks
        await turns()
        steps = Steps(bench.queue)
        assert count(await waiting) == 0
        assert steps.log_starts == 1
        assert bench.queue.machine.book.start == RECORDS
        bench.queue.end("the test is over")

    virtual.run(story())
