"""A member whose process stands still keeps nothing from the others for longer than its locks, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.queues.queue import Queue
from raylog.actors.queues.reading import LogReader
from raylog.core.queues.records import QueueChange, QueueState
from raylog.protocol import queues as wire
from raylog.protocol.message import read
from raylog.storage.batch.records import BatchMeta, encode_batch
from tests.simulation.outbox import loop as virtual

RECORDS, BATCH, LOCK_MS = 2_000, 100, 1_000


def log_of(records: int) -> list[bytes]:
    """Batches of a partition, each record with one of fifty keys."""
    batches = []
    for first in range(0, records, BATCH):
        values: list[bytes | None] = [b"%d" % (first + number) for number in range(BATCH)]
        keys: list[bytes | None] = [b"%d" % (number % 50) for number in range(BATCH)]
        payload = bytearray(encode_batch(keys, values, [0] * BATCH, None, BatchMeta()))
        payload[:8] = first.to_bytes(8, "big")
        batches.append(bytes(payload))
    return batches


class Host:
    """What a queue needs of the leader's shell, over a log that does not change."""

    partition, config, is_over = "jobs-0", dict[str, str](), False
    log = SimpleNamespace(log_start_offset=0)

    def __init__(self) -> None:
        self.batches = log_of(RECORDS)
        self.tasks: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def list_offsets(self, timestamp: int) -> Any:
        return SimpleNamespace(offset=0 if timestamp == -2 else RECORDS)

    async def fetch(self, offset: int, *, max_bytes: int, max_wait_ms: int, isolation_level: int) -> Any:
        await asyncio.sleep(max_wait_ms / 1000 if offset >= RECORDS else 0)
        reply = SimpleNamespace(last_stable_offset=RECORDS, log_start_offset=0, aborted=())
        return reply, b"".join(self.batches[offset // BATCH :])


class States:
    """Stores every change after a while."""

    async def read(self, group: str) -> tuple[int, QueueChange, bool]:
        stored = QueueState("jobs")
        stored.apply(QueueChange(0, (), {}, None))
        return 1, read(QueueChange, stored.snapshot().to_wire(), "A change"), False

    async def write(self, *_: object) -> None:
        await asyncio.sleep(0.005)


class Sent:
    """A request, and its answer."""

    def __init__(self, connection: object) -> None:
        self.connection, self.is_deserted = connection, False
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, result: Any, payload: bytes = b"") -> None:
        self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.answer.set_exception(error)


class Bench:
    """A queue with members that fetch when the test says so."""

    def __init__(self, **settings: str) -> None:
        self.settings = {"queue.lock.ms": str(LOCK_MS), "queue.delivery.limit": "-1", **settings}
        host: Any = Host()
        states: Any = States()
        unused: Any = None
        reader = LogReader(host, lambda: self.queue.more())
        self.queue = Queue(
            "workers",
            host,
            reader,
            states,
            unused,
            unused,
            is_watched=lambda: False,
            on_over=lambda _, why: pytest.fail(why),
            wall_ms=self._wall_ms,
        )

    async def _wall_ms(self) -> int:
        return 1_700_000_000_000

    async def open(self, member: str) -> None:
        connection = SimpleNamespace(on_close=lambda _: None)
        sent: Any = Sent(connection)
        self.queue.open(sent, wire.QueueOpenRequest("id", 0, 1, "workers", member, self.settings))
        await sent.answer

    def fetch(self, member: str, max_records: int = RECORDS, max_wait_ms: int = 20_000) -> asyncio.Future[Any]:
        sent: Any = Sent(None)
        request = wire.QueueFetchRequest("id", 0, 1, "workers", member, max_records, 1 << 30, max_wait_ms)
        self.queue.fetch(sent, request)
        future: asyncio.Future[Any] = sent.answer
        return future


def count(reply: Any) -> int:
    return sum(row.end - row.first for row in reply.ranges)


@pytest.mark.parametrize("order", ["none", "key"])
def test_others_get_the_records_of_a_silent_member_when_its_locks_end(order: str) -> None:
    """Its fetch came before theirs, and must not lock the records once more: nothing shows that it lives."""

    async def story() -> None:
        bench = Bench(**{"queue.order": order})
        clock = asyncio.get_running_loop()
        await bench.queue.load()
        for member in ("silent", "quick"):
            await bench.open(member)
        held = count(await bench.fetch("silent"))
        until = clock.time() + LOCK_MS / 1000
        while more := count(await bench.fetch("silent", max_wait_ms=0)):
            held += more
        assert held >= BATCH
        waiting = bench.fetch("silent")  # and now its process stands still
        await asyncio.sleep(0.05)
        assert clock.time() < until
        found = count(await bench.fetch("quick"))
        assert found > 0
        assert clock.time() - until < 0.1
        assert count(await waiting) == 0, "a member that lives fetches again"
        bench.queue.end("the test is over")

    virtual.run(story())


def test_a_member_that_lives_gets_its_records_again() -> None:
    async def story() -> None:
        bench = Bench()
        await bench.queue.load()
        await bench.open("slow")
        assert count(await bench.fetch("slow")) == RECORDS
        assert count(await bench.fetch("slow")) == 0
        assert count(await bench.fetch("slow")) == RECORDS
        bench.queue.end("the test is over")

    virtual.run(story())
