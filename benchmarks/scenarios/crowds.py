"""Many at once: 50 producers without batching, and groups of ten and of fifty consumers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench import Bench, Contestant
from benchmarks.clients.run import run
from benchmarks.job import Outcome
from benchmarks.scenarios.throughput import fill_each

CONNECTIONS = 50
MEMBERS = 10
MANY_MEMBERS, MANY_PARTITIONS = 50, 200


def small(bench: Bench) -> None:
    """Fifty connections, each with one record in flight, and the next only after its acknowledgement."""
    contestants = bench.among("raylog send", "confluent-kafka", "aiokafka")
    kinds = [(1, False), (3, False)] if bench.pace.quick else [(1, False), (3, False), (1, True), (3, True)]
    for replication, fsync in kinds:
        with bench.topic(contestants, 1, replication, fsync=fsync) as job_for:
            bench.rounds(
                "small",
                f"{CONNECTIONS} connections, 100 B, RF {replication}, acks=all{', flush.messages=1' if fsync else ''}",
                contestants,
                bench.run_for(job_for, "small", connections=CONNECTIONS, linger_ms=0),
            )


def group(bench: Bench) -> None:
    """Ten members in one process: until each has a partition, and until the topic is read."""
    contestants = bench.among("raylog records", "confluent-kafka")
    with bench.topic(contestants, MEMBERS, 1) as job_for:
        held = fill_each(bench, job_for, contestants, 100, 500_000)

        def measure(contestant: Contestant) -> Outcome | None:
            job = job_for(contestant)
            if job is None:
                return None
            return run(replace(job, load="group", connections=MEMBERS, count=held[contestant.peer]))

        case = f"{MEMBERS} members, 10 partitions, until all have joined"
        bench.rounds("group", case, contestants, measure, metric="join_s", count=bench.pace.slow_rounds)


def rebalance(bench: Bench) -> None:
    """Fifty cooperative members of 200 partitions come together, and one more joins; those that stay should read on."""
    contestants = bench.among("raylog records", "confluent-kafka")
    with bench.topic(contestants, MANY_PARTITIONS, 1) as job_for:

        def measure(contestant: Contestant) -> Outcome | None:
            job = job_for(contestant)
            if job is None:
                return None
            members = replace(job, connections=MANY_MEMBERS, partitions=MANY_PARTITIONS, assignor="cooperative-sticky")
            return run(replace(members, load="rebalance"))

        case = f"{MANY_MEMBERS} cooperative members, {MANY_PARTITIONS} partitions, then one more"
        bench.rounds("rebalance", case, contestants, measure, metric="join_s", count=bench.pace.slow_rounds)
