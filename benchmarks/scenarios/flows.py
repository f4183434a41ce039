"""Producing and consuming at once: end-to-end latency at fixed rates, both at full speed, and catching up."""

from __future__ import annotations

import functools
import time
from dataclasses import replace

from benchmarks.bench import Bench, Contestant, of_job
from benchmarks.clients.run import Running, run_both, with_sender
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import cpu_seconds
from benchmarks.scenarios.throughput import fill_each

LATENCY = ("raylog records", "confluent-kafka", "aiokafka", "nats", "redis streams", "ray.util.queue")
RATES = (100, 1_000, 10_000)
SETTLE_S = 1.0
REST_S, REST_QUICK_S = 10.0, 3.0
CATCHUP_S = 90.0
"""Deadline for reading a backlog."""


def latency(bench: Bench) -> None:
    """From the moment a record is due until its consumer has it; no linger on either side.

    The idle CPU use of the servers is measured first: they share the cores with the measured one.
    """
    quick = bench.pace.quick
    seconds = 2.0 if quick else 20.0
    for replication, fsync in ((3, False), (1, False), (3, True)):
        rivals = LATENCY if replication == 1 else LATENCY[:4]
        contestants = bench.among(*(rivals[:2] if fsync or quick else rivals))
        with bench.topic(contestants, 1, replication, fsync=fsync, fresh=fsync) as job_for:
            if (replication, fsync) == (3, False):
                _at_rest(bench)
            for rate in (1_000,) if quick else RATES:
                bench.rounds(
                    "latency",
                    f"{rate:,}/s, 100 B, RF {replication}, acks=all{', flush.messages=1' if fsync else ''}",
                    contestants,
                    of_job(job_for, functools.partial(_end_to_end, rate, seconds)),
                    metric="p99_ms",
                )


def _at_rest(bench: Bench) -> None:
    """CPU time of each idle server, all in the same seconds."""
    servers = bench.among("raylog records", "confluent-kafka", "nats", "redis streams")
    pids = {server.name: bench.peers[server.peer].pids() for server in servers}
    replicas = {server.name: bench.peers[server.peer].replica_pids() for server in servers}
    time.sleep(SETTLE_S)
    began_s, before = time.monotonic(), {pid: cpu_seconds([pid]) for of in pids.values() for pid in of}
    time.sleep(REST_QUICK_S if bench.pace.quick else REST_S)
    seconds = time.monotonic() - began_s
    used = {pid: (cpu_seconds([pid]) - earlier) / seconds * 1000 for pid, earlier in before.items()}

    def measured(contestant: Contestant) -> Outcome:
        all_of, holding = pids[contestant.name], replicas[contestant.name]
        return {
            "idle_cpu_ms": sum(used[pid] for pid in all_of),
            "processes": len(all_of),
            "replicas_cpu_ms": sum(used.get(pid, 0.0) for pid in holding),
            "replicas": len(holding),
            "seconds": seconds,
        }

    bench.rounds("latency", "server at rest, with this scenario's first topic", servers, measured, "idle_cpu_ms", 1)


def _end_to_end(rate: float, seconds: float, job: Job, _: Contestant) -> Outcome:
    warmup_s = min(2.0, seconds / 3)
    count = int(rate * (seconds + warmup_s))
    job = replace(job, rate=rate, count=count, warmup_s=warmup_s, linger_ms=0)
    return with_sender(*run_both(replace(job, load="follow"), replace(job, load="pace", waits=True)))


def together(bench: Bench) -> None:
    """One producer and one consumer at full speed on the same topic; the rate is the consumer's."""
    quick = bench.pace.quick
    contestants = bench.among("raylog records", "confluent-kafka", *(() if quick else ("aiokafka",)))
    with bench.topic(contestants, 6, 3) as job_for:

        def measure(job: Job, _: Contestant) -> Outcome:
            sending, listening = (replace(job, load=load, waits=True) for load in ("produce", "listen"))
            with Running(sending) as producing, Running(listening) as taking:
                producing.wait_ready()
                taking.wait_ready()
                producing.begin()
                taking.begin()
                sent = producing.outcome()
                outcome = taking.outcome()
            return {**outcome, "produced_rate": sent["rate"]}

        case = "produce while consuming, 100 B, 6 partitions, RF 3"
        bench.rounds("together", case, contestants, of_job(job_for, measure), forgets=True)


def catchup(bench: Bench) -> None:
    """A consumer reads a backlog to its end while a producer continues at a fixed rate; the rate is the consumer's."""
    backlog = 200 * 10**6 if bench.pace.quick else 2 * 10**9
    size, rate = 1_000, 5_000
    contestants = bench.among("raylog records", "confluent-kafka")
    with bench.topic(contestants, 6, 1, holds="a backlog") as job_for:
        held = fill_each(bench, job_for, contestants, size, backlog // size)

        def measure(job: Job, contestant: Contestant) -> Outcome:
            count = int(rate * (bench.pace.seconds + (2 if bench.pace.quick else 4)))
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
        bench.rounds("catchup", case, contestants, of_job(job_for, measure), count=bench.pace.slow_rounds)
