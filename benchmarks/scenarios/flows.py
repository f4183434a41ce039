"""Producing and consuming at once: end-to-end latency at fixed rates, both at full speed, and catching up."""

from __future__ import annotations

import functools
from dataclasses import replace

from benchmarks.bench import Bench, Contestant
from benchmarks.clients.run import Running, run
from benchmarks.job import Outcome
from benchmarks.scenarios.throughput import JobFor, fill_each

LATENCY = ("raylog records", "confluent-kafka", "aiokafka", "nats", "redis streams", "ray.util.queue")
RATES = (100, 1_000, 10_000)
CATCHUP_S = 90.0
"""Within this time a backlog has to be read."""


def latency(bench: Bench) -> None:
    """From the moment a record is due until its consumer has it; no linger on either side."""
    quick = bench.pace.quick
    seconds = 3.0 if quick else 20.0
    for partitions, replication, fsync in ((1, 3, False), (1, 1, False), (1, 3, True)):
        everybody = LATENCY if replication == 1 else LATENCY[:4]
        if quick and replication == 1:
            everybody = ("raylog records", "confluent-kafka", "nats", "redis streams")
        contestants = bench.among(*(everybody[:2] if fsync or (quick and replication == 3) else everybody))
        with bench.topic(contestants, partitions, replication, fsync=fsync) as job_for:
            for rate in (1_000,) if quick else RATES:
                bench.rounds(
                    "latency",
                    f"{rate:,}/s, 100 B, RF {replication}, acks=all{', flush.messages=1' if fsync else ''}",
                    contestants,
                    functools.partial(_end_to_end, job_for, rate, seconds),
                    metric="p99_ms",
                )


def _end_to_end(job_for: JobFor, rate: float, seconds: float, contestant: Contestant) -> Outcome | None:
    job = job_for(contestant)
    if job is None:
        return None
    warmup_s = min(2.0, seconds / 3)
    count = int(rate * (seconds + warmup_s))
    job = replace(job, rate=rate, count=count, warmup_s=warmup_s, linger_ms=0)
    with Running(replace(job, load="follow")) as reading:
        reading.wait_ready()
        sent = run(replace(job, load="pace"))
        outcome = reading.outcome()
    return {**outcome, "producer_cpu_s": sent["client_cpu_s"], "server_cpu_s": sent["server_cpu_s"]}


def together(bench: Bench) -> None:
    """One producer and one consumer at full speed on the same topic; the rate is the consumer's."""
    contestants = bench.among("raylog records", "confluent-kafka", "aiokafka")
    with bench.topic(contestants, 6, 3) as job_for:

        def measure(contestant: Contestant) -> Outcome | None:
            job = job_for(contestant)
            if job is None:
                return None
            with Running(replace(job, load="produce", waits=True)) as producing:
                producing.wait_ready()
                with Running(replace(job, load="listen", waits=True)) as taking:
                    taking.wait_ready()
                    producing.begin()
                    taking.begin()
                    sent = producing.outcome()
                    outcome = taking.outcome()
            return {**outcome, "produced_rate": sent["rate"]}

        bench.rounds("together", "produce while consuming, 100 B, 6 partitions, RF 3", contestants, measure)


def catchup(bench: Bench) -> None:
    """A consumer reads a backlog to its end while a producer goes on at a fixed rate; the rate is the consumer's."""
    backlog = 200 * 10**6 if bench.pace.quick else 2 * 10**9
    size, rate = 1_000, 5_000
    contestants = bench.among("raylog records", "confluent-kafka")
    with bench.topic(contestants, 6, 1, holds="a backlog") as job_for:
        held = fill_each(bench, job_for, contestants, size, backlog // size)

        def measure(contestant: Contestant) -> Outcome | None:
            job = job_for(contestant)
            if job is None:
                return None
            count = int(rate * (bench.pace.seconds + 4))
            reading = replace(job, load="consume", size=size, warmup_s=0.0, seconds=CATCHUP_S, once=True, waits=True)
            with Running(replace(job, load="pace", size=size, rate=rate, count=count, warmup_s=0)) as producing:
                producing.wait_ready()
                with Running(replace(reading, count=held[contestant.peer])) as taking:
                    taking.wait_ready()
                    taking.begin()
                    outcome = taking.outcome()
                producing.outcome()
            held[contestant.peer] += count
            return outcome

        case = f"{backlog / 1e9:g} GB of 1,000 B behind, 5,000/s still coming"
        bench.rounds("catchup", case, contestants, measure, count=bench.pace.slow_rounds)
