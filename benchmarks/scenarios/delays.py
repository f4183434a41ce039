"""Delayed messages: how late they are at a fixed rate, and how many a second come when all are due at once."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench import Bench, of_job
from benchmarks.clients.run import run_both
from benchmarks.job import Job, Outcome

CONTESTANTS = ("raylog send", "rabbitmq ttl, dead letters")
DELAY_MS = 3_000
RATE = 1_000
BURST, QUICK_BURST = 200_000, 50_000
STORE_PER_S = 5_000
"""Time to store a burst before it is due, at this rate."""


def delays(bench: Bench) -> None:
    """Records with a delay of three seconds at a fixed rate; then many that are due in the same moment.

    Late is the time from a record's due time until its consumer has it; a stall of the sender counts.
    """
    contestants = bench.among(*CONTESTANTS)
    where = "100 B, 1 partition, RF 3"
    with bench.topic(contestants, 1, 3, holds="delayed", is_queue=True) as job_for:
        seconds = 4.0 if bench.pace.quick else 20.0
        late = of_job(job_for, lambda job, _: _lateness(job, seconds))
        bench.rounds("delays", f"{where}, {RATE:,} due/s, lateness", contestants, late, metric="p99_ms")
        count = QUICK_BURST if bench.pace.quick else BURST
        at_once = of_job(job_for, lambda job, _: _burst(job, count))
        bench.rounds("delays", f"{where}, {count:,} due at once", contestants, at_once)


def _lateness(job: Job, seconds: float) -> Outcome:
    warmup_s = min(2.0, seconds / 3)
    count = int(RATE * (seconds + warmup_s))
    job = replace(job, rate=RATE, count=count, warmup_s=warmup_s, linger_ms=0, delay_ms=DELAY_MS)
    return run_both(replace(job, load="follow"), replace(job, load="pace", waits=True))[0]


def _burst(job: Job, count: int) -> Outcome:
    delay_ms = 3_000 + count * 1_000 // STORE_PER_S
    job = replace(job, count=count, delay_ms=delay_ms)
    return run_both(replace(job, load="drain"), replace(job, load="burst", waits=True))[0]
