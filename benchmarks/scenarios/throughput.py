"""How many records go in and come out: produce, consume (from the page cache and cold), and growth."""

from __future__ import annotations

import itertools
from dataclasses import replace

from benchmarks.bench import Bench, Contestant
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import drop_from_page_cache

PRODUCERS = (
    "raylog send", "raylog send_batch", "kafka java tool", "confluent-kafka", "aiokafka", "kafka-python", "nats",
    "redis streams", "ray.util.queue",
)  # fmt: skip
CONSUMERS = (
    "raylog records", "raylog columns", "raylog arrow", "kafka java tool", "confluent-kafka", "aiokafka",
    "kafka-python", "nats", "redis streams",
)  # fmt: skip
CORE_PRODUCERS = PRODUCERS[:4]
IN_MEMORY = ("redis streams", "ray.util.queue")
IN_MEMORY_BYTES_MAX = 1_000
"""These keep everything in memory, which larger records would fill."""
SERVER_WARMUP_S = 20.0


def warm_up(bench: Bench) -> None:
    """Let every server run under load before anything counts: Kafka's virtual machine gets faster for a while."""
    contestants = bench.among("raylog send", "confluent-kafka")
    seconds = SERVER_WARMUP_S / 2 if bench.pace.quick else SERVER_WARMUP_S
    for replication in (3, 1):
        with bench.topic(contestants, 6 if replication == 3 else 1, replication) as job_for:
            for contestant in contestants:
                job = job_for(contestant)
                if job is not None:
                    run(replace(job, load="produce", warmup_s=0.0, seconds=seconds / (1 if replication == 3 else 4)))
    bench.say("the servers are warm")


def produce(bench: Bench) -> None:
    """By size, partitions, replication, acks, compression and durability."""
    quick = bench.pace.quick
    kinds = [(1, 1, False), (6, 3, False)] if quick else list(itertools.product((1, 6), (1, 3), (False,)))
    kinds += [(6, 3, True)] if quick else [(1, 1, True), (6, 3, True)]
    for partitions, replication, fsync in kinds:
        contestants = bench.among(*PRODUCERS)
        with bench.topic(contestants, partitions, replication, fsync=fsync) as job_for:
            for size, acks, compression in _variants(quick, replication, fsync):
                # A QUICK run has everybody in the one case that the goals name, and the main four elsewhere.
                everybody = not quick or (replication == 3 and not fsync) or (partitions == 1 and size == 1_000)
                names = [one for one in PRODUCERS if everybody or one in CORE_PRODUCERS]
                if size > IN_MEMORY_BYTES_MAX:
                    names = [one for one in names if one not in IN_MEMORY]
                bench.rounds(
                    "produce",
                    case_name(size, partitions, replication, acks, compression, fsync),
                    bench.among(*names),
                    bench.run_for(job_for, "produce", size=size, acks=acks, compression=compression, fresh=True),
                )


def _variants(quick: bool, replication: int, fsync: bool) -> list[tuple[int, str, str]]:
    if fsync:
        return [(100, "all", "none")] if quick else [(100, "all", "none"), (1_000, "all", "none")]
    if quick:
        return [(100, "all", "none")] if replication == 3 else [(1_000, "all", "none")]
    sizes = [(size, acks, "none") for size in (10, 100, 1_000, 10_000) for acks in ("all", "1")]
    return [*sizes, (1_000, "all", "lz4")]


def case_name(size: int, partitions: int, replication: int, acks: str, compression: str, fsync: bool) -> str:
    """A case as the table says it."""
    parts = [f"{size:,} B", f"{partitions} partition{'s'[: partitions > 1]}", f"RF {replication}", f"acks={acks}"]
    parts += [compression] if compression != "none" else []
    return ", ".join([*parts, *(["flush.messages=1"] if fsync else [])])


def fill(bench: Bench, job: Job, peer: str, size: int, count: int) -> int:
    """Have a topic hold at least `count` records, and return how many it has."""
    stored = 0
    client = {"raylog": "raylog", "kafka": "confluent", "redis": "redis", "nats": "nats"}[peer]
    rate = 100_000.0
    while stored < count:
        seconds = min(20.0, max(0.3, (count - stored) / rate))
        outcome = run(replace(job, client=client, form="records", load="produce", size=size, warmup_s=0.0,
                              seconds=seconds, linger_ms=5, acks="all"))  # fmt: skip
        rate = max(1_000.0, outcome["rate"])
        stored += int(outcome["stored"])
    bench.say(f"{peer} holds {stored:,} records of {size} B")
    return stored


def consume(bench: Bench) -> None:
    """From the page cache, and with the files dropped from it."""
    quick = bench.pace.quick
    contestants = bench.among(*CONSUMERS)
    cases = [(100, 6, 3, 1_000_000)] if quick else [(100, 6, 3, 10_000_000), (100, 1, 1, 5_000_000),
                                                    (1_000, 6, 1, 2_000_000)]  # fmt: skip
    for size, partitions, replication, count in cases:
        with bench.topic(contestants, partitions, replication) as job_for:
            held: dict[str, int] = {}
            for contestant in contestants:
                job = job_for(contestant)
                if job is not None and contestant.peer not in held:
                    held[contestant.peer] = fill(bench, job, contestant.peer, size, count)

            def measure(contestant: Contestant, *, cold: bool, job_for=job_for, size=size, held=held) -> Outcome | None:  # type: ignore[no-untyped-def]
                job = job_for(contestant)
                if job is None:
                    return None
                wanted = replace(job, load="consume", size=size, count=held[contestant.peer])
                if cold:
                    drop_from_page_cache(bench.peers[contestant.peer].folder())
                    wanted = replace(wanted, warmup_s=0.0, seconds=0.0)
                return run(wanted)

            case = f"{size:,} B, {partitions} partition{'s'[: partitions > 1]}, RF {replication}"
            bench.rounds("consume", f"{case}, page cache", contestants, lambda one: measure(one, cold=False))
            bench.rounds("consume", f"{case}, cold", contestants, lambda one: measure(one, cold=True))


def growth(bench: Bench) -> None:
    """Throughput as partitions and data grow: 1 to 24 partitions, and 1 to 20 GB in one topic."""
    if bench.pace.quick:
        return
    contestants = bench.among("raylog send_batch", "raylog send", "confluent-kafka")
    for partitions in (1, 6, 24):
        with bench.topic(contestants, partitions, 1) as job_for:
            measure = bench.run_for(job_for, "produce", size=1_000)
            bench.rounds("growth", f"1,000 B, RF 1, {partitions} partitions", contestants, measure, count=3)
    ours = bench.among("raylog send_batch", "raylog send")[-1:] + bench.among("confluent-kafka")
    with bench.topic(ours, 6, 1) as job_for:
        for gigabytes in (1, 5, 20):
            for contestant in ours:
                job = job_for(contestant)
                if job is not None:
                    have = run(replace(job, load="produce", size=10_000, warmup_s=0, seconds=0.5))["stored"] * 10_000
                    step = max(0, gigabytes * 10**9 - have) // 10_000
                    fill(bench, job, contestant.peer, 10_000, step // 2)
            measure = bench.run_for(job_for, "produce", size=1_000)
            bench.rounds("growth", f"1,000 B, RF 1, 6 partitions, {gigabytes} GB on disk", ours, measure, count=3)
