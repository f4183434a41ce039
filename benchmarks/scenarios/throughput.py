"""Throughput: produce, and consume from the page cache and cold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.bench import Bench, Contestant, JobFor, Measure, of_job, run_for
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import drop_from_page_cache

PRODUCERS: tuple[str, ...] = (
    "raylog send", "raylog send_batch", "kafka java tool", "confluent-kafka", "aiokafka", "kafka-python", "nats",
    "redis streams", "ray.util.queue",
)  # fmt: skip
CONSUMERS = (
    "raylog records", "raylog columns", "raylog arrow", "kafka java tool", "confluent-kafka", "aiokafka",
    "kafka-python", "nats", "redis streams",
)  # fmt: skip
CORE_PRODUCERS: tuple[str, ...] = PRODUCERS[:4]
USUAL_SIZES = (100, 1_000)
"""Sizes measured for all contestants; with other sizes only for those that a goal names. A run would otherwise take a
day, and servers that keep everything in memory would fill it with larger records."""
QUICK_RECORDS, QUICK_FILL_S = 5_000_000, 7.0
"""Columns of so many take half a second to read; fewer would measure the consumer's start, not its reading."""
SERVER_WARMUP_S = 60.0
FILL_S = 30.0
"""Timeout for filling a topic; a slower server is measured with the records it has."""


def warm_up(bench: Bench) -> None:
    """Run every server under load before anything counts: Kafka's JVM gets faster for a while.

    A quick run does so on the topics that its first scenarios need, so that few processes are there.
    """
    contestants = bench.among("raylog send", "confluent-kafka")
    quick = bench.pace.quick
    seconds = SERVER_WARMUP_S / 8 if quick else SERVER_WARMUP_S
    for replication in (3, 1):
        with bench.topic(contestants, 6 if replication == 3 and not quick else 1, replication) as job_for:
            for contestant in contestants:
                job = job_for(contestant)
                parts = (1 if replication == 3 else 4) * (1 if contestant.peer == "kafka" else 4)
                if job is not None:
                    run(replace(job, load="produce", warmup_s=0.0, seconds=seconds / parts))
    bench.say("the servers are warm")


def produce(bench: Bench) -> None:
    """By size, partitions, replication, acks, compression and durability."""
    quick = bench.pace.quick
    kinds = [(1, 1, False)] if quick else list(itertools.product((1, 6), (1, 3), (False,)))
    # The last topic of a quick run is reused by the next scenario.
    kinds += [(6, 3, True), (6, 3, False)] if quick else [(1, 1, True), (6, 3, True)]
    for partitions, replication, fsync in kinds:
        contestants = bench.among(*PRODUCERS)
        own = (partitions, replication, fsync) != (6, 3, False)
        with bench.topic(contestants, partitions, replication, fsync=fsync, fresh=own) as job_for:
            for size, acks, compression in _variants(quick, replication, fsync):
                usual = size in USUAL_SIZES and acks == "all" and compression == "none"
                names = PRODUCERS if usual else CORE_PRODUCERS
                names = _quick_producers(replication, fsync) if quick else names
                bench.rounds(
                    "produce",
                    case_name(size, partitions, replication, acks, compression, fsync),
                    bench.among(*names),
                    run_for(job_for, "produce", size=size, acks=acks, compression=compression, fresh=True),
                    forgets=True,
                )


def _quick_producers(replication: int, fsync: bool) -> tuple[str, ...]:
    """A quick run has each contestant once: Kafka's clients in replicated cases, the others where supported."""
    if fsync:
        return CORE_PRODUCERS
    return PRODUCERS[:6] if replication > 1 else (*CORE_PRODUCERS, *PRODUCERS[6:])


def _variants(quick: bool, replication: int, fsync: bool) -> list[tuple[int, str, str]]:
    if fsync:
        return [(100, "all", "none")] if quick else [(100, "all", "none"), (1_000, "all", "none")]
    if quick:
        return [(100, "all", "none")] if replication == 3 else [(1_000, "all", "none")]
    sizes = [(size, "all", "none") for size in (10, 100, 1_000, 10_000)]
    return [*sizes, *((size, "1", "none") for size in USUAL_SIZES), (1_000, "all", "lz4")]


def case_name(size: int, partitions: int, replication: int, acks: str, compression: str, fsync: bool) -> str:
    """A case as shown in the table."""
    parts = [f"{size:,} B", f"{partitions} partition{'s'[: partitions > 1]}", f"RF {replication}", f"acks={acks}"]
    parts += [compression] if compression != "none" else []
    return ", ".join([*parts, *(["flush.messages=1"] if fsync else [])])


def fill(
    bench: Bench, job: Job, peer: str, size: int, count: int, limit_s: float = FILL_S, *, even: bool = False
) -> int:
    """Fill a topic to `count` records or a little more, as far as possible in the time; returns its record count.

    `even`: each partition gets as many.
    """
    client = {"raylog": "raylog", "kafka": "confluent", "redis": "redis", "nats": "nats"}[peer]
    job = replace(job, client=client, form="records", load="produce", size=size, even=even)
    job = replace(job, warmup_s=0.0, linger_ms=5, acks="all")
    stored = int(run(replace(job, load="count"))["stored"])
    if stored < count:
        stored += int(run(replace(job, seconds=limit_s, count=count - stored))["stored"])
    bench.say(f"{peer} holds {stored:,} records")
    return stored


def fill_each(
    bench: Bench,
    job_for: JobFor,
    contestants: Sequence[Contestant],
    size: int,
    count: int,
    limit_s: float = FILL_S,
    *,
    even: bool = False,
) -> dict[str, int]:
    """Fill the topic of every server; returns the record count of each. `even` as that of `fill`."""
    held: dict[str, int] = {}
    for contestant in contestants:
        job = job_for(contestant)
        if job is not None and contestant.peer not in held:
            held[contestant.peer] = fill(bench, job, contestant.peer, size, count, limit_s, even=even)
    return held


def consume(bench: Bench) -> None:
    """A full topic, from the page cache, and with the files dropped from it.

    A record counts as read when its value exists as bytes (`records`, and all other libraries), when iteration over the
    column yields it as bytes (`columns`), or when the whole Arrow table exists (`arrow`); the lengths of the values are
    summed up.
    """
    quick = bench.pace.quick
    contestants = bench.among(*(CONSUMERS[:5] if quick else CONSUMERS))
    cases = [(100, 6, QUICK_RECORDS)] if quick else [(100, 6, 20_000_000), (100, 1, 20_000_000), (1_000, 6, 2_000_000)]
    for size, partitions, count in cases:
        with bench.topic(contestants, partitions, 1, holds=f"{size:,} B to consume") as job_for:
            limit_s = QUICK_FILL_S if quick else 2 * FILL_S
            held = fill_each(bench, job_for, contestants, size, count, limit_s)
            case = f"{size:,} B, {partitions} partition{'s'[: partitions > 1]}, RF 1"
            bench.rounds(
                "consume", f"{case}, page cache", contestants, _reading(bench, job_for, size, held, cold=False)
            )
            few = bench.among("raylog records", "confluent-kafka") if quick else contestants
            rounds = 1 if quick else None
            cold = _reading(bench, job_for, size, held, cold=True)
            bench.rounds("consume", f"{case}, cold", few, cold, count=rounds)


def _reading(bench: Bench, job_for: JobFor, size: int, held: Mapping[str, int], *, cold: bool) -> Measure:
    def measure(job: Job, contestant: Contestant) -> Outcome:
        wanted = replace(job, load="consume", size=size, count=held[contestant.peer])
        if cold:
            drop_from_page_cache(bench.peers[contestant.peer].folder())
            wanted = replace(wanted, warmup_s=0.0, once=True)
        return run(wanted)

    return of_job(job_for, measure)
