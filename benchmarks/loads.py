"""The loads of a client process: each takes a client and returns its measurements. Warm-up is never counted."""

from __future__ import annotations

import array
import itertools
import random
import resource
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.clients.base import Client, Unsupported
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import cpu_seconds
from benchmarks.rebalances import rebalance
from benchmarks.report import stats

POOL = 1_000
CHUNK_BYTES = 256 << 10
CHUNK_MAX = 1_000
TURN_CHUNKS = 10
"""Chunks that go to one partition before those of the next, where a load is even: batches stay full."""
TAKE_S = 1.0
SILENCE_S = 15.0
STAMP = struct.Struct(">q?")
ReportReady = Callable[[], None]
"""Reports that the client is ready, and waits for the start signal if the job requires it."""
Make = Callable[[Job], Client]


def payloads(size: int, count: int) -> list[bytes]:
    """Random letters, which compress about as well as text; the same in every process."""
    chance = random.Random(size)
    letters = (bytes(range(65, 91)) * 10)[:256]
    return [chance.randbytes(size).translate(letters) for _ in range(count)]


def chunks_of(size: int) -> list[list[bytes]]:
    """Payloads of a size in chunks, as many as one call of a client takes."""
    chunk = min(CHUNK_MAX, max(1, CHUNK_BYTES // size))
    pool = payloads(size, max(POOL, chunk))[: POOL // chunk * chunk]
    return [pool[begin : begin + chunk] for begin in range(0, len(pool), chunk)]


class Meter:
    """Time and CPU of a measured phase: the client's, by default this process's own, and that of the server's."""

    def __init__(self, server_pids: Sequence[int], client_cpu_s: Callable[[], float] | None = None) -> None:
        self._pids = server_pids
        self._client_cpu_s = client_cpu_s or own_cpu_s
        self._server_s = cpu_seconds(server_pids)
        self._client_s = self._client_cpu_s()
        self._began_s = time.monotonic()

    def read(self, records: int, size: int) -> Outcome:
        """Time and CPU of the phase so far."""
        seconds = time.monotonic() - self._began_s
        return {
            "records": records,
            "bytes": size,
            "seconds": seconds,
            "rate": records / seconds,
            "client_cpu_s": self._client_cpu_s() - self._client_s,
            "server_cpu_s": cpu_seconds(self._pids) - self._server_s,
        }


def own_cpu_s() -> float:
    """CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def produce(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send for a time, or `count` records, wait for every acknowledgement, and count the server's records."""
    client = make(job)
    client.open_producer()
    chunks = chunks_of(job.size)

    def send_for(seconds: float) -> int:
        ends_s = time.monotonic() + seconds
        sent = 0
        while time.monotonic() < ends_s and not 0 < job.count <= sent:
            number = sent // len(chunks[0])
            some = chunks[number % len(chunks)]
            if job.even:
                client.send_chunk_to(number // TURN_CHUNKS % job.partitions, some)
            else:
                client.send_chunk(some)
            sent += len(some)
        client.flush()
        return sent

    try:
        send_for(job.warmup_s)
        before = client.stored()
        report_ready()
        meter = Meter(job.server_pids)
        sent = send_for(job.seconds)
        outcome = meter.read(sent, sent * job.size)
        after = client.stored()
        outcome["stored"] = after - before if before >= 0 else sent
        return outcome
    finally:
        client.close()


def transact(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send for a time in transactions of `transaction_ms`, and commit each; also how long the commits took."""
    client = make(job)
    client.open_producer()
    chunks = itertools.cycle(chunks_of(job.size))
    commits_ms: list[float] = []

    def send_for(seconds: float) -> int:
        ends_s = time.monotonic() + seconds
        sent = 0
        while (now_s := time.monotonic()) < ends_s:
            client.begin()
            while time.monotonic() < now_s + job.transaction_ms / 1000:
                some = next(chunks)
                client.send_chunk(some)
                sent += len(some)
            client.flush()  # the time of a commit is then that of the commit alone, for every client alike
            began_s = time.monotonic()
            client.commit()
            commits_ms.append((time.monotonic() - began_s) * 1000)
        return sent

    try:
        send_for(job.warmup_s)
        commits_ms.clear()
        report_ready()
        meter = Meter(job.server_pids)
        sent = send_for(job.seconds)
        commits_ms.sort()
        # The server counts the markers of transactions as well.
        outcome = {**meter.read(sent, sent * job.size), "stored": sent, "transactions": len(commits_ms)}
        return outcome | {"p50_ms": stats.percentile(commits_ms, 50), "p99_ms": stats.percentile(commits_ms, 99)}
    finally:
        client.close()


def count(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """How many records the topic holds."""
    client = make(job)
    report_ready()
    try:
        return {"stored": client.stored()}
    finally:
        client.close()


def consume(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Read the topic, `count` records, and again from its beginning until `seconds` were measured; or `once` only.

    The clock runs while records arrive: connecting, finding the beginning and the first records of each pass are
    excluded, for every client alike. `once` is in the outcome when the first pass has read the whole topic.
    """
    client = make(job)
    client.open_consumer()
    total: Outcome = {"records": 0, "bytes": 0, "seconds": 0.0, "client_cpu_s": 0.0, "server_cpu_s": 0.0}
    try:
        if job.warmup_s:
            _read_once(client, job, job.warmup_s, {})
            client.rewind()
        report_ready()
        began_s = time.monotonic()
        read = _read_once(client, job, job.seconds, total)
        # Even a fast pass has a beginning that is not measured.
        while not job.once and total["seconds"] < job.seconds and time.monotonic() - began_s < 5 * job.seconds:
            client.rewind()
            _read_once(client, job, job.seconds - total["seconds"], total)
        whole = {"once": read} if read == job.count else {}
        return {**total, "rate": total["records"] / max(total["seconds"], 1e-9), "stored": job.count, **whole}
    finally:
        client.close()


def _read_once(client: Client, job: Job, seconds: float, total: Outcome) -> int:
    """One pass, cut off after `seconds`; adds to `total` the records behind the first ones, and their cost.

    Returns the number of all records read. Raises Unsupported when they stop before the end.
    """
    last_s = time.monotonic()
    first = first_bytes = 0
    while not first and time.monotonic() - last_s < SILENCE_S:
        first, first_bytes = client.take(TAKE_S)
    meter = Meter(job.server_pids)
    records, size = first, first_bytes
    last_s = time.monotonic()
    ends_s = last_s + seconds
    while records < job.count and (now_s := time.monotonic()) < ends_s:
        some, more = client.take(TAKE_S)
        records, size = records + some, size + more
        if some:
            last_s = now_s
        elif now_s - last_s > SILENCE_S:
            raise Unsupported(f"it read {records:,} of {job.count:,} records, and then none for {SILENCE_S:g} s")
    for name, value in meter.read(records - first, size - first_bytes).items():
        total[name] = total.get(name, 0) + value
    return records


def listen(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Read for a time the records that arrive after the start."""
    client = make(job)
    client.open_consumer(at_end=True)
    client.take(0.5)
    report_ready()
    try:
        meter = Meter(job.server_pids)
        records = size = 0
        ends_s = time.monotonic() + job.seconds
        while time.monotonic() < ends_s:
            some, more = client.take(0.1)
            records, size = records + some, size + more
        return meter.read(records, size)
    finally:
        client.close()


def follow(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Read the records of `pace`, and measure the time from each record's due time to its read."""
    client = make(job)
    client.open_consumer(at_end=True)
    client.values(0.5)
    report_ready()
    latencies = array.array("d")
    seen = 0
    last_s = time.monotonic()
    unpack = STAMP.unpack_from
    try:
        meter = Meter(job.server_pids)
        while seen < job.count and time.monotonic() - last_s < SILENCE_S:
            values = client.values(TAKE_S)
            now_ns = time.monotonic_ns()
            if not values:
                continue
            last_s = time.monotonic()
            seen += len(values)
            for value in values:
                due_ns, counts = unpack(value)
                if counts:
                    latencies.append((now_ns - due_ns) / 1e6)
        found = {f"{name}_ms": value for name, value in stats.percentiles(latencies).items()} if latencies else {}
        return {**meter.read(seen, seen * job.size), **found, "stored": job.count}
    finally:
        client.close()


def pace(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send at a fixed rate; the beginning, `warmup_s` long, is marked as not counting.

    Delayed records are due `delay_ms` later, at the same rate.
    """
    client = make(job)
    client.open_producer()
    report_ready()
    began_ns = time.monotonic_ns() + 50_000_000
    counts_from_ns = began_ns + int(job.warmup_s * 1e9)
    filling = bytes(max(0, job.size - STAMP.size))

    def stamp(due_ns: int) -> bytes:
        return STAMP.pack(due_ns + job.delay_ms * 1_000_000, due_ns >= counts_from_ns) + filling

    try:
        meter = Meter(job.server_pids)
        client.pace(stamp, began_ns, job.count)
        client.flush()
        return {**meter.read(job.count, job.count * job.size), "stored": job.count}
    finally:
        client.close()


def small(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Many connections, each with one record in flight and no batches: the module's own `small`."""
    run: Any = getattr(make(job), "small", None)
    if run is None:
        raise Unsupported("many small producers are not measured with this client")
    run_for = run(payloads(job.size, POOL))
    try:
        run_for(job.warmup_s)
        report_ready()
        meter = Meter(job.server_pids)
        sent = run_for(job.seconds)
        return {**meter.read(sent, sent * job.size), "stored": sent}
    finally:
        run_for(0)


def group(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Ten consumers (`connections`) of one group: until all have partitions, and until all records were read."""
    counts = [0] * job.connections
    joined_s = [0.0] * job.connections
    name = f"group-{time.time_ns()}"
    done = threading.Event()
    began_s = time.monotonic()

    def member(number: int) -> None:
        client = make(job)
        try:
            client.open_consumer(group=name)
            while not done.is_set():
                counts[number] += client.take(0.2)[0]
                if not joined_s[number] and client.is_assigned():
                    joined_s[number] = time.monotonic() - began_s
        finally:
            client.close()

    threads = [threading.Thread(target=member, args=(number,)) for number in range(job.connections)]
    report_ready()
    meter = Meter(job.server_pids)
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 60
    # A rebalance during the read may deliver a record twice; the count is then above, never below.
    while (sum(counts) < job.count or not all(joined_s)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    outcome = meter.read(sum(counts), sum(counts) * job.size)
    done.set()
    for thread in threads:
        thread.join()
    return {**outcome, "join_s": max(joined_s), "stored": job.count, "members": sum(1 for item in joined_s if item)}


def probe(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send records one after the other at a fixed rate while a leader dies; the longest time without an answer."""
    run: Any = getattr(make(job), "probe", None)
    if run is None:
        raise Unsupported("failover is not measured with this client")
    moments: list[float] = run(payloads(job.size, 1)[0], report_ready)
    return {"seconds": job.seconds, "records": len(moments), "gap_ms": stats.longest_gap(moments) * 1000}


def create(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Connect; then write one record to each partition of a newly created topic, until all are stored."""
    client: Any = make(job)
    client.connect()
    try:
        report_ready()  # a waiting job continues when the topic has been created
        client.send_to_each(payloads(job.size, 1)[0])
        client.flush()
        return {"records": job.partitions, "monotonic_s": time.monotonic()}
    finally:
        client.close()


LOADS: dict[str, Callable[[Job, Make, ReportReady], Outcome]] = {
    item.__name__: item
    for item in (produce, transact, count, consume, listen, follow, pace, small, group, rebalance, probe, create)
}
