"""Counts that do not vary with the machine: the cost of one batch in calls, frames, system calls and copies.

A whole cluster and a client run in one process, brokers on one thread and the client on another, so that each side's
work is counted separately. `tests/cluster/reads/test_counts.py` holds the counts to `budgets.toml`: a regression fails
there without a clock. `python -m tests.cluster.counts` prints them.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import threading
import tomllib
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from raylog.base.ids import TopicPartition
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.storage import filesystem
from tests.cluster.local_cluster import SECRET, LocalCluster

BUDGETS = Path(__file__).resolve().parents[2] / "benchmarks" / "budgets.toml"
BATCHES = 40
RECORDS = 100
REPEATS = 12
"""The lowest of several counts is taken: timers of the cluster, the metadata voters' above all, fall into some of them,
and into the more the slower the machine is."""
PAGE_CACHE = str(2**63 - 1)
RESTING = {"broker.heartbeat.interval.ms": "60000", "broker.session.timeout.ms": "600000"}
"""Almost no heartbeats, so that mostly the records' path is counted."""
LARGE_BYTES = 1_000_000
SYSTEM_CALLS = {
    "send", "sendmsg", "sendall", "recv", "recv_into", "read", "readinto", "write", "writev", "pwrite", "pwritev",
    "pread", "preadv", "sendfile", "fsync", "fdatasync", "poll", "select", "open", "close", "fstat", "stat", "lseek",
}  # fmt: skip
"""C functions that are one system call each. A write or a sync in a pool's thread is counted by `syncs` instead."""
Result = TypeVar("Result")
Counts = dict[str, float]


class ThreadCounter:
    """Counts the work of the thread that switches it on, through the interpreter's profiler."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on(self) -> None:
        """Count from here, in this thread."""
        self.counts.clear()
        sys.setprofile(self._event)

    def off(self) -> Counter[str]:
        """Stop, and return the counts."""
        sys.setprofile(None)
        return Counter(self.counts)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.counts["python_calls"] += 1
            if frame.f_code.co_name == "encode_header":
                self.counts["frames"] += 1
        elif event == "c_call":
            self.counts["c_calls"] += 1
            if argument.__name__ in SYSTEM_CALLS and _is_of_the_system(argument):
                self.counts["system_calls"] += 1


def _is_of_the_system(function: Any) -> bool:
    """Whether it belongs to a socket, a file or the os, and not to another class with a method of this name."""
    owner = getattr(function, "__self__", None)
    return type(owner).__name__ in {"socket", "epoll", "FileIO", "module"} or "socket" in type(owner).__name__.lower()


class Side:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.counter = ThreadCounter()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def do(self, work: Callable[[], Awaitable[Result]], timeout_s: float = 60) -> Result:
        """Run a coroutine there and wait for it."""

        async def done() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(timeout_s)

    def on(self) -> None:
        """Begin to count there."""

        async def begin() -> None:
            self.counter.on()

        self.do(begin)

    def off(self) -> Counter[str]:
        """Stop counting there."""

        async def end() -> Counter[str]:
            return self.counter.off()

        return self.do(end)

    def end(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)


class Stage:
    """A cluster of three brokers on one side and a client on the other."""

    def __init__(self, root: Path) -> None:
        self.brokers, self.client = Side("brokers"), Side("client")
        self._cluster = LocalCluster(root, brokers=3, config=RESTING)
        self.brokers.do(self._cluster.start)
        self.address: dict[str, Any] = {"bootstrap": self._cluster.bootstrap(), "secret": SECRET}

    def close(self) -> None:
        """Stop everything."""
        self.brokers.do(self._cluster.stop)
        self.client.end()
        self.brokers.end()

    def create(self, topic: str, replication: int, flush_messages: str) -> None:
        """Create a topic of one partition."""
        from raylog.client.admin.admin import AsyncAdmin

        async def created() -> None:
            async with AsyncAdmin(**self.address) as admin:
                config = {"flush.messages": flush_messages}
                await admin.create_topic(topic, partitions=1, replication_factor=replication, config=config)

        self.client.do(created)

    def lowest(self, work: Callable[[], Awaitable[None]], batches: int) -> Counts:
        """Run work several times, and return the lowest counts of each side for one batch."""
        found: dict[str, list[float]] = {}
        for _ in range(REPEATS):
            self.brokers.on()
            self.client.on()
            self.client.do(work)
            for name, side in (("client", self.client), ("broker", self.brokers)):
                for what, count in side.off().items():
                    found.setdefault(f"{name}_{what}", []).append(count / batches)
        return {name: min(counts) for name, counts in sorted(found.items())}


@contextmanager
def stage() -> Iterator[Stage]:
    """A cluster for the length of a block, in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="raylog-counts-") as root:
        staged = Stage(Path(root))
        try:
            yield staged
        finally:
            staged.close()


def produced(staged: Stage, replication: int) -> Counts:
    """Cost of a batch of 100 records from `send` to its acknowledgement, one batch after the other."""
    topic = f"produced-{replication}"
    staged.create(topic, replication, PAGE_CACHE)
    producer = staged.client.do(lambda: _started(AsyncProducer(**staged.address, linger_ms=0)))

    async def batches() -> None:
        for _ in range(BATCHES):
            futures = [await producer.send(topic, b"v" * 100) for _ in range(RECORDS)]
            await futures[-1]

    try:
        staged.client.do(batches)
        return staged.lowest(batches, BATCHES)
    finally:
        staged.client.do(producer.stop)


async def _started(one: AsyncProducer) -> AsyncProducer:
    await one.start()
    return one


def filled(staged: Stage) -> str:
    """A topic of identical batches, on any machine."""
    topic = "filled"
    staged.create(topic, 1, PAGE_CACHE)
    producer = staged.client.do(lambda: _started(AsyncProducer(**staged.address)))

    async def batches() -> None:
        for _ in range(BATCHES):
            await (await producer.send_batch(topic, [b"v" * 100] * RECORDS))

    try:
        staged.client.do(batches)
    finally:
        staged.client.do(producer.stop)
    return topic


def consumed(staged: Stage, topic: str, *, near: bool) -> Counts:
    """Cost of a batch of 100 records on its way to a consumer that reads a backlog, 40 batches in all.

    If `near`, the consumer reads the leader's file on its own machine; else the leader sends the records.
    """
    partition = TopicPartition(topic, 0)

    async def opened() -> AsyncConsumer:
        consumer = AsyncConsumer(
            **staged.address, enable_auto_commit=False, auto_offset_reset="earliest", short_circuit_reads=near
        )
        await consumer.start()
        consumer.assign([partition])
        return consumer

    consumer = staged.client.do(opened)

    async def read() -> None:
        consumer.seek(partition, 0)
        taken = 0
        while taken < BATCHES * RECORDS:
            polled = await consumer.getmany(timeout_ms=5_000, max_records=BATCHES * RECORDS - taken)
            taken += sum(map(len, polled.values()))

    try:
        staged.client.do(read)
        return staged.lowest(read, BATCHES)
    finally:
        staged.client.do(consumer.stop)


def synced(staged: Stage) -> Counts:
    """Number of waits for the disk, one batch after the other."""
    topic = "synced"
    staged.create(topic, 1, "1")
    producer = staged.client.do(lambda: _started(AsyncProducer(**staged.address, linger_ms=0)))
    calls = 0
    real = filesystem.fdatasync

    def counting(descriptor: Any, /) -> None:
        nonlocal calls
        calls += 1
        real(descriptor)

    async def one_by_one() -> None:
        for _ in range(BATCHES):
            await producer.send_and_wait(topic, b"v" * 100)

    filesystem.fdatasync = counting
    try:
        staged.client.do(one_by_one)
        return {"syncs": calls / BATCHES}
    finally:
        filesystem.fdatasync = real
        staged.client.do(producer.stop)


def copied(staged: Stage) -> Counts:
    """How many times its own size a record of a megabyte takes at most, in client and brokers, until stored."""
    topic = "copied"
    staged.create(topic, 3, PAGE_CACHE)
    producer = staged.client.do(lambda: _started(AsyncProducer(**staged.address, linger_ms=0)))
    value = b"v" * LARGE_BYTES

    async def one() -> None:
        await producer.send_and_wait(topic, value)

    try:
        staged.client.do(one)
        staged.client.do(one)
        peaks, kept = [], []
        tracemalloc.start()
        for _ in range(REPEATS):
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            blocks = sys.getallocatedblocks()
            tracemalloc.reset_peak()
            staged.client.do(one)
            peaks.append((tracemalloc.get_traced_memory()[1] - before) / LARGE_BYTES)
            gc.collect()
            kept.append(sys.getallocatedblocks() - blocks)
        return {"peak_bytes_per_byte": min(peaks), "blocks_kept": float(min(kept))}
    finally:
        tracemalloc.stop()
        staged.client.do(producer.stop)


def measure() -> dict[str, Counts]:
    """Every count, by operation."""
    with stage() as staged:
        backlog = filled(staged)
        return {
            "produce, RF 1": produced(staged, 1),
            "produce, RF 3": produced(staged, 3),
            "consume": consumed(staged, backlog, near=False),
            "consume, near": consumed(staged, backlog, near=True),
            "sync": synced(staged),
            "large record, RF 3": copied(staged),
        }


def budgets() -> dict[str, Counts]:
    """The most that each count may be."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def main() -> None:
    """Print every count beside its budget."""
    allowed = budgets() if BUDGETS.exists() else {}
    for what, counts in measure().items():
        print(f"{what}, per batch")
        for name, count in counts.items():
            print(f"  {name:24} {count:10.2f}   budget {allowed.get(what, {}).get(name, float('nan')):g}")


if __name__ == "__main__":
    main()
