"""The loads of work queues: fill one with numbered messages, work it off, handle what comes at a fixed rate."""

from __future__ import annotations

import array
import base64
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from benchmarks.clients.base import Unsupported
from benchmarks.job import Job, Outcome
from benchmarks.loads import SILENCE_S, STAMP, Make, Meter, ReportReady, payloads
from benchmarks.queues.base import Worker, make_worker
from benchmarks.report import stats

NUMBER = struct.Struct(">Q")
CHUNK = 1_000
TAKE_S = 0.25
JOIN_S = 60.0
WARM_S = 20.0
"""Within this time every consumer has had a message, unless others take everything."""


def fill(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send `count` messages that begin with their numbers, from 0 on."""
    client = make(job)
    client.open_producer()
    report_ready()
    rest = payloads(max(1, job.size - NUMBER.size), 1)[0]
    try:
        meter = Meter(job.server_pids)
        for first in range(0, job.count, CHUNK):
            numbers = range(first, min(first + CHUNK, job.count))
            client.send_chunk([NUMBER.pack(number) + rest for number in numbers])
        client.flush()
        return meter.read(job.count, job.count * job.size)
    finally:
        client.close()


class Crew:
    """The workers of this process, one a thread; each is opened, used and closed by its own."""

    def __init__(self, job: Job, work: Callable[[Worker, int], None]) -> None:
        """`work` gets a worker and its number when all are open and `begin` was called."""
        self._job = job
        self._work = work
        self._opened = threading.Barrier(job.connections + 1, timeout=JOIN_S)
        self._begun = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(job.connections)]
        for thread in self._threads:
            thread.start()

    def wait_open(self) -> None:
        """Wait until every worker is open. Raises what one of them did."""
        try:
            self._opened.wait()
        except threading.BrokenBarrierError:
            self._begun.set()
            self.join()
            raise

    def begin(self) -> None:
        """Have them work."""
        self._begun.set()

    def join(self) -> None:
        """Wait for their ends. Raises the first error of one of them."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, number: int) -> None:
        worker = make_worker(self._job)
        try:
            worker.open()
            self._opened.wait()
            self._begun.wait()
            self._work(worker, number)
        except threading.BrokenBarrierError:
            return  # another worker's error is raised
        except Exception as error:  # of any library: raised in the main thread
            self._errors.append(error)
            self._opened.abort()
        finally:
            worker.close()


def work(job: Job, _: Make, report_ready: ReportReady) -> Outcome:
    """Take and acknowledge a queue's `count` messages for `seconds`, or until nothing comes any more.

    It begins when every consumer has had a message, or none for a while: joining a group is not measured, for every
    library alike. The time ends with the last answer. `seen` has a byte for each number, 1 if it was taken: deflated,
    in base64.
    """
    seen = bytearray(job.count)
    taken = [0] * job.connections
    ended_s = [0.0] * job.connections
    warm, begun, over = threading.Barrier(job.connections + 1), threading.Event(), threading.Event()
    before = [0] * job.connections

    def take(worker: Worker, number: int) -> list[bytes]:
        values = worker.take(TAKE_S)
        for value in values:
            seen[NUMBER.unpack_from(value)[0]] = 1
        worker.ack()
        taken[number] += len(values)
        return values

    def worked(worker: Worker, number: int) -> None:
        until_s = time.monotonic() + WARM_S
        while not take(worker, number) and time.monotonic() < until_s:
            pass  # it is not a member yet, or others have everything
        worker.flush()
        before[number] = taken[number]
        warm.wait(JOIN_S)
        begun.wait()
        is_open = False
        while not over.is_set():
            values = take(worker, number)
            if not values and is_open:  # the queue is empty: the time of the last message counts
                worker.flush()
                ended_s[number] = time.monotonic() - TAKE_S
            is_open = bool(values)
        if is_open:
            worker.flush()
            ended_s[number] = time.monotonic()

    crew = Crew(job, worked)
    crew.wait_open()
    crew.begin()
    warm.wait(JOIN_S)
    report_ready()
    meter = Meter(job.server_pids)
    began_s = time.monotonic()
    begun.set()
    over.wait(job.seconds)
    over.set()
    outcome = meter.read(0, 0)
    crew.join()
    flags = base64.b64encode(zlib.compress(seen)).decode()
    return {
        **outcome,
        "records": sum(taken) - sum(before),
        "taken": sum(taken),
        "seconds": max(0.0, max(ended_s) - began_s),
        "seen": flags,
    }


def distinct(flags: Sequence[str]) -> int:
    """How many different numbers were taken, from the `seen` of several processes."""
    everything = 0
    for text in flags:
        everything |= int.from_bytes(zlib.decompress(base64.b64decode(text)), "big")
    return everything.bit_count()


def handle(job: Job, _: Make, report_ready: ReportReady) -> Outcome:
    """Take and acknowledge what `pace` sends; the time from each message's due time until its consumer has it."""
    latencies = [array.array("d") for _ in range(job.connections)]
    counts = [0] * job.connections
    last_s = [time.monotonic()]
    over = threading.Event()

    def handled(worker: Worker, number: int) -> None:
        unpack = STAMP.unpack_from
        while not over.is_set():
            values = worker.take(TAKE_S)
            now_ns = time.monotonic_ns()
            worker.ack()
            if values:
                last_s[0] = time.monotonic()
            counts[number] += len(values)
            for value in values:
                due_ns, is_counted = unpack(value)
                if is_counted:
                    latencies[number].append((now_ns - due_ns) / 1e6)
        worker.flush()

    crew = Crew(job, handled)
    crew.wait_open()
    crew.begin()
    report_ready()
    meter = Meter(job.server_pids)
    last_s[0] = time.monotonic()
    while sum(counts) < job.count and time.monotonic() - last_s[0] < SILENCE_S:
        over.wait(0.02)
    outcome = meter.read(sum(counts), sum(counts) * job.size)
    over.set()
    crew.join()
    if sum(counts) < job.count:
        raise Unsupported(f"{sum(counts):,} of {job.count:,} messages came, and then none for {SILENCE_S:g} s")
    every = array.array("d", (item for part in latencies for item in part))
    found = {f"{name}_ms": value for name, value in stats.percentiles(every).items()} if every else {}
    return {**outcome, **found, "stored": job.count}


LOADS = {item.__name__: item for item in (fill, work, handle)}
