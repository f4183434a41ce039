"""Whether throughput stays as partitions and data grow, from 1 to 24 and from 1 to 20 GB; what idle replicas cost."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.bench import Bench, Contestant, JobFor, Measure, of_job
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import Unavailable, cpu_seconds
from benchmarks.scenarios.throughput import fill_each

SIZE = 1_000
PARTITIONS = (1, 6, 24)
GIGABYTES = (1, 5, 20)
QUICK_GIGABYTES = (1, 4)
"""The cases that fit into a quick run; the goal needs the others."""
ROUNDS_MAX = 3
SECONDS = 1.5
"""Short, because each measurement adds data on disk."""
DATA_SECONDS = 1.0
DATA_PARTITIONS = 6
HELD = 1_000_000
"""Records in each topic of the axis of partitions before it is measured."""
NEWEST = 240_000
"""Newest records to read where gigabytes lie before them."""
FILLING = 100_000
"""Bytes of a filler record."""
SPARE_GIGABYTES = 17
"""Bytes written by the measurements themselves, and a margin."""
FREED_WITHIN_S = 90.0
IDLE_S, IDLE_QUICK_S = 5.0, 2.0


def growth(bench: Bench) -> None:
    """Whether throughput stays from 1 to 24 partitions and from 1 to 20 GB; here the cases take turns, too."""
    _partitions(bench, (1, 24) if bench.pace.quick else PARTITIONS)
    if bench.pace.quick and bench.is_late():  # its results could not reach a goal
        bench.leave_out("growth, data on disk", Unavailable("the time was over"))
        return
    _data(bench, QUICK_GIGABYTES if bench.pace.quick else GIGABYTES)


def _rounds(bench: Bench) -> int:
    return min(ROUNDS_MAX, bench.pace.slow_rounds)


def _partitions(bench: Bench, counts: tuple[int, ...]) -> None:
    """By partitions, each topic with the same records; all topics exist all the time."""
    writers = bench.among("raylog send", "raylog send_batch", "confluent-kafka")
    readers = bench.among("raylog records", "raylog columns", "confluent-kafka")
    with contextlib.ExitStack() as stack:
        jobs = {count: stack.enter_context(bench.topic(writers, count, 1, fresh=True)) for count in counts}
        _idle(bench, sum(counts))
        reading: dict[str, Measure] = {}
        for count, job_for in jobs.items():
            held = fill_each(bench, job_for, writers, SIZE, HELD // 4 if bench.pace.quick else HELD)
            reading[f"consume, {_named(count)}"] = _settled(bench, job_for, "consume", held)
        bench.rounds_in_turn("growth", reading, readers, count=_rounds(bench))
        writing = {f"produce, {_named(count)}": _settled(bench, item, "produce") for count, item in jobs.items()}
        bench.rounds_in_turn("growth", writing, writers, count=_rounds(bench), forgets=True)


def _named(partitions: int) -> str:
    return f"{SIZE:,} B, RF 1, {partitions} partition{'s'[: partitions > 1]}"


def _settled(bench: Bench, job_for: JobFor, load: str, held: Mapping[str, int] | None = None) -> Measure:
    """A measurement of a topic with so much data."""

    def measure(job: Job, contestant: Contestant) -> Outcome:
        seconds = min(SECONDS, bench.pace.seconds)
        count = 0 if held is None else held[contestant.peer]
        job = replace(job, load=load, size=SIZE, seconds=seconds, warmup_s=0.5, count=count)
        return run(replace(job, server_pids=bench.peers[contestant.peer].pids()))

    return of_job(job_for, measure)


def _idle(bench: Bench, least: int) -> None:
    """CPU time of an idle replica."""

    def measure(contestant: Contestant) -> Outcome | None:
        pids = bench.peers[contestant.peer].replica_pids()
        if len(pids) < least:
            raise Unavailable(f"only {len(pids)} of {least} replicas run")
        before = [cpu_seconds([pid]) for pid in pids]
        began_s = time.monotonic()
        time.sleep(IDLE_QUICK_S if bench.pace.quick else IDLE_S)
        seconds = time.monotonic() - began_s
        used = [(cpu_seconds([pid]) - item) / seconds * 1000 for pid, item in zip(pids, before, strict=True)]
        return {"idle_cpu_ms": statistics.mean(used), "processes": len(pids), "seconds": seconds}

    ours = bench.among("raylog send")
    bench.rounds("growth", "replicas at rest", ours, measure, "idle_cpu_ms", 1)


def _data(bench: Bench, sizes: tuple[int, ...]) -> None:
    """By the data already in the topic; the newest records are read. Raylog alone, because the disk holds no more."""
    sizes = _that_fit(bench, sizes)
    writers, readers = bench.among("raylog send", "raylog send_batch"), bench.among("raylog records", "raylog columns")
    with contextlib.ExitStack() as stack:
        writing: dict[str, Measure] = {}
        reading: dict[str, Measure] = {}
        for size in sizes:
            job_for = stack.enter_context(bench.topic(writers, DATA_PARTITIONS, 1, fresh=True))
            _fill(bench, job_for, size)
            name = f"{_named(DATA_PARTITIONS)}, {size} GB on disk"
            writing[f"produce, {name}"] = _on_top(bench, job_for, "produce")
            reading[f"consume, {name}"] = _on_top(bench, job_for, "consume")
        bench.rounds_in_turn("growth", writing, writers, count=_rounds(bench))
        bench.rounds_in_turn("growth", reading, readers, count=_rounds(bench))


def _that_fit(bench: Bench, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that fit on the disk, after deleted topics have left it."""
    deadline_s = time.monotonic() + FREED_WITHIN_S
    while (free := shutil.disk_usage(bench.scratch).free / 1e9) < sum(sizes) + SPARE_GIGABYTES:
        if time.monotonic() < deadline_s:
            time.sleep(1.0)
            continue
        bench.leave_out(f"growth, {sizes[-1]} GB on disk", Unavailable(f"the disk has {free:.0f} GB free"))
        sizes = sizes[:-1]
    return sizes


def _fill(bench: Bench, job_for: JobFor, gigabytes: int) -> None:
    """Write large records in batches until the topic has so much data."""
    (ours,) = bench.among("raylog send_batch")
    job = job_for(ours)
    held, rate = 0, 400e6
    while job is not None and held < gigabytes * 10**9:
        seconds = min(20.0, max(0.2, (gigabytes * 10**9 - held) / rate))
        outcome = run(replace(job, load="produce", size=FILLING, seconds=seconds, warmup_s=0.0))
        held, rate = held + outcome["bytes"], outcome["bytes"] / outcome["seconds"]
    bench.say(f"a topic holds {held / 1e9:.1f} GB")


def _on_top(bench: Bench, job_for: JobFor, load: str) -> Measure:
    """Write more, or read the newest records."""

    def measure(job: Job, contestant: Contestant) -> Outcome:
        job = replace(job, load=load, size=SIZE, seconds=DATA_SECONDS, warmup_s=0.3)
        job = replace(job, server_pids=bench.peers[contestant.peer].pids())
        return run(job if load == "produce" else replace(job, count=NEWEST, newest=NEWEST // job.partitions))

    return of_job(job_for, measure)
