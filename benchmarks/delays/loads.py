"""The loads of delayed messages beside `pace` and `follow`, which measure lateness: many that are due at once."""

from __future__ import annotations

import time

from benchmarks.clients.base import Unsupported
from benchmarks.job import Job, Outcome
from benchmarks.loads import SILENCE_S, STAMP, TAKE_S, Make, Meter, ReportReady

CHUNK = 500


def burst(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Send `count` records that are all due `delay_ms` from the start; they have to be stored before."""
    client = make(job)
    client.open_producer()
    report_ready()
    began_ns = time.monotonic_ns()
    due_ns = began_ns + job.delay_ms * 1_000_000
    payload = STAMP.pack(due_ns, True) + bytes(max(0, job.size - STAMP.size))
    try:
        meter = Meter(job.server_pids)
        for first in range(0, job.count, CHUNK):
            client.send_chunk([payload] * min(CHUNK, job.count - first))
        client.flush()
        if time.monotonic_ns() > due_ns:
            raise Unsupported(f"it did not store {job.count:,} records in the {job.delay_ms / 1000:g} s that they had")
        return meter.read(job.count, job.count * job.size)
    finally:
        client.close()


def drain(job: Job, make: Make, report_ready: ReportReady) -> Outcome:
    """Read the records of `burst`; the time runs from when they are due until the last one has come."""
    client = make(job)
    client.open_consumer(at_end=True)
    client.values(0.5)
    report_ready()
    seen, early, due_ns = 0, 0, 0
    meter: Meter | None = None
    last_s = time.monotonic() + job.delay_ms / 1000
    try:
        while seen < job.count and time.monotonic() - last_s < SILENCE_S:
            values = client.values(TAKE_S)
            if not values:
                continue
            now_ns = time.monotonic_ns()
            meter = meter or Meter(job.server_pids)
            due_ns, _ = STAMP.unpack_from(values[0])
            early += len(values) if now_ns < due_ns else 0
            seen += len(values)
            last_s = time.monotonic()
        if meter is None or seen < job.count:
            raise Unsupported(f"{seen:,} of {job.count:,} records came, and then none for {SILENCE_S:g} s")
        seconds = last_s - due_ns / 1e9
        whole = {"seconds": seconds, "rate": seen / seconds, "early": early, "stored": job.count}
        return {**meter.read(seen, seen * job.size), **whole}
    finally:
        client.close()


LOADS = {item.__name__: item for item in (burst, drain)}
