"""Many at once: 50 producers without batching, and groups of ten and of fifty consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.bench import Bench, Contestant, of_job, run_for
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome
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
                run_for(job_for, "small", connections=CONNECTIONS, linger_ms=0),
            )


def group(bench: Bench) -> None:
    """Ten members in one process: until each has a partition, and until the topic is read."""
    contestants = bench.among("raylog records", "confluent-kafka")
    with bench.topic(contestants, MEMBERS, 1) as job_for:
        held = fill_each(bench, job_for, contestants, 100, 500_000)

        def measure(job: Job, contestant: Contestant) -> Outcome:
            return run(replace(job, load="group", connections=MEMBERS, count=held[contestant.peer]))

        case = f"{MEMBERS} members, 10 partitions, until all have joined"
        rounds = bench.pace.slow_rounds
        bench.rounds("group", case, contestants, of_job(job_for, measure), metric="join_s", count=rounds)


def rebalance(bench: Bench) -> None:
    """Fifty members of 200 partitions come together, and one more joins; those that stay should read on."""
    contestants = bench.among("raylog records", "confluent-kafka")
    kinds = {
        "cooperative": {"assignor": "cooperative-sticky"},
        "consumer protocol": {"group_protocol": "consumer"},
    }
    for name, kind in kinds.items():
        _rebalance(bench, contestants, name, kind)


def _rebalance(bench: Bench, contestants: Sequence[Contestant], name: str, kind: Mapping[str, Any]) -> None:
    with bench.topic(contestants, MANY_PARTITIONS, 1) as job_for:
        measure = run_for(job_for, "rebalance", connections=MANY_MEMBERS, **kind)
        members = f"{MANY_MEMBERS} cooperative members" if name == "cooperative" else f"{MANY_MEMBERS} members, {name}"
        case = f"{members}, {MANY_PARTITIONS} partitions, then one more"
        bench.rounds("rebalance", case, contestants, measure, metric="join_s", count=bench.pace.slow_rounds)
