"""The first record to a partition whose replicas doze, and one while they run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from benchmarks import machine
from benchmarks.job import Outcome
from benchmarks.options import Parser
from benchmarks.peers.processes import adopt_orphans
from benchmarks.peers.raylog_peer import Raylog
from benchmarks.report.results import Measured, Results
from benchmarks.rest.command import open_files
from benchmarks.rest.peer import Deadline
from benchmarks.rest.raylog_rest import RaylogWriter, client
from benchmarks.rest.readings import state
from benchmarks.rest.trickle import in_percentiles
from benchmarks.scratch import scratch_folder

SCENARIO, TOPIC, VALUE = "dozing", "dozing", b"first " * 16
STOPPED = "T"
LOOK_S = 0.1
DEADLINE_S = 120.0


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line's options."""
    parser = Parser("dozing", __doc__)
    add = parser.add_argument
    add("--partitions", type=int, default=30, help="partitions; each gets one record a round (default: 30)")
    add("--brokers", type=int, default=3, help="brokers (default: 3)")
    add("--replication", type=int, default=3, help="replicas of each partition (default: 3)")
    add("--rounds", type=int, default=5, help="how often all doze and get a record (default: 5)")
    add("--pause", type=float, default=0.2, help="seconds between two records of a round (default: 0.2)")
    add("--no-fsync", action="store_true", help="acknowledge from the page cache")
    parser.add_results()
    parser.add_data()
    chosen = parser.parse_args(given)
    if min(chosen.partitions, chosen.rounds, chosen.brokers) < 1 or not 1 <= chosen.replication <= chosen.brokers:
        parser.error("--partitions, --rounds and --brokers take 1 or more, --replication at most the brokers")
    return chosen


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look again and again; raises Unavailable when it is not so in time."""
    deadline = Deadline(DEADLINE_S)
    while not is_so():
        deadline.check(what)
        time.sleep(LOOK_S)


def one_round(
    writer: RaylogWriter, pids: Sequence[int], partitions: int, pause_s: float
) -> tuple[list[float], list[float]]:
    """Milliseconds of each partition's first record while its replicas doze, and of the next one."""
    wait_until(lambda: all(state(pid) == STOPPED for pid in pids), "not every replica dozes")
    first_ms: list[float] = []
    next_ms: list[float] = []
    for partition in range(partitions):
        for took_ms in (first_ms, next_ms):
            began_s = time.monotonic()
            writer.send(partition, VALUE, DEADLINE_S)
            took_ms.append((time.monotonic() - began_s) * 1000)
            time.sleep(pause_s)
    return first_ms, next_ms


def run(chosen: argparse.Namespace, peer: Raylog, results: Results) -> None:
    """All rounds; a column for the first records, and one for those after them."""
    peer.start()
    peer.create_topic(TOPIC, chosen.partitions, chosen.replication, fsync=not chosen.no_fsync)
    results.versions |= {f"raylog: {item}": text for item, text in peer.describe().items()}
    rows: dict[str, list[Outcome]] = {"dozing": [], "running": []}
    for name, rounds in rows.items():
        case = f"{chosen.partitions:,} partitions, RF {chosen.replication}, {name}"
        results.measured.append(Measured(SCENARIO, case, "raylog", "record_p50_ms", rounds))
    writer = RaylogWriter(client(TOPIC, peer.address()))
    try:
        for partition in range(chosen.partitions):
            writer.send(partition, VALUE, DEADLINE_S)
        replicas = chosen.partitions * chosen.replication
        wait_until(lambda: len(peer.replica_pids()) == replicas, "not every replica runs")
        pids = peer.replica_pids()
        for number in range(1, chosen.rounds + 1):
            took = one_round(writer, pids, chosen.partitions, chosen.pause)
            for rounds, took_ms in zip(rows.values(), took, strict=True):
                rounds.append(in_percentiles("record", took_ms))
            print(f"round {number}: " + ", ".join(text(name, rounds[-1]) for name, rounds in rows.items()), flush=True)
    finally:
        writer.close()
    for name, rounds in rows.items():
        print("median: " + text(name, {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}))


def text(name: str, outcome: Outcome) -> str:
    """One outcome, to read."""
    return f"{name} p50 {outcome['record_p50_ms']:.2f} ms, p99 {outcome['record_p99_ms']:.2f} ms"


def main(given: Sequence[str]) -> int:
    """Run, print the rounds, keep them as JSON."""
    chosen = arguments(given)
    adopt_orphans()
    names = ("partitions", "brokers", "replication", "rounds", "pause", "no_fsync")
    settings = {**{name: getattr(chosen, name) for name in names}, "open files": open_files()}
    results = Results(machine.describe(), machine.versions(), settings)
    folder = chosen.results / f"dozing-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    config = {"replica.sleep.after.ms": "-1"}
    with scratch_folder(chosen.data) as scratch:
        peer = Raylog(scratch, chosen.brokers, timeout_s=DEADLINE_S, config=config)
        try:
            run(chosen, peer, results)
        finally:
            peer.stop()
            results.machine |= machine.at_end()
            results.write(folder / "results.json")
    print(f"Kept in {folder}.")
    return 0
