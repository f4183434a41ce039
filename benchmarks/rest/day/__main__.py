"""`python -m benchmarks.rest.day`: a day of one broker in minutes, as samples in JSON, and a picture of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.job import Outcome
from benchmarks.optional import Missing
from benchmarks.peers.processes import Unavailable, free_ports
from benchmarks.report.results import Measured, Results
from benchmarks.rest.__main__ import ROOT, open_files
from benchmarks.rest.day.pattern import DAY_S, HABITS, Due, day
from benchmarks.rest.day.picture import draw
from benchmarks.rest.day.watching import Watch
from benchmarks.rest.deadline import Deadline
from benchmarks.rest.peer import Writer
from benchmarks.rest.raylog_rest import RaylogAtRest
from benchmarks.rest.scratch import scratch_folder
from benchmarks.rest.trickle import in_percentiles

SCENARIO, TOPIC, VALUE = "day", "day", b"record " * 14
SAMPLES = 144
"""In the day: one every ten minutes."""
LOOK_S = 1.0
"""Between two readings of the processes, at most."""
SHORTEST_SLEEP_MS, SHORTEST_DOZE_MS = 1000, 100
DEADLINE_S = 120.0


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rest.day", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=12.0, help="how long the day takes (default: 12)")
    add("--partitions", type=int, default=1000, help="partitions of one replica (default: 1000)")
    add(
        "--sleep-after", type=float, default=1800.0, help="replica.sleep.after.ms, in the day's seconds (default: 1800)"
    )
    add("--doze-after", type=float, default=60.0, help="replica.doze.after.ms, likewise; -1 = never (default: 60)")
    add("--seed", type=int, default=1, help="of the pattern (default: 1)")
    add("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where JSON and picture are kept")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), help="where the broker keeps its data")
    chosen = parser.parse_args(given)
    if chosen.minutes <= 0 or chosen.partitions < 2:
        parser.error("--minutes takes more than 0, --partitions 2 or more")
    return chosen


def config(chosen: argparse.Namespace) -> dict[str, str]:
    """The cluster's settings, with both times divided as the day is. Pure."""
    factor = DAY_S / (chosen.minutes * 60)
    sleep_ms = max(SHORTEST_SLEEP_MS, round(chosen.sleep_after * 1000 / factor))
    doze_ms = max(SHORTEST_DOZE_MS, round(chosen.doze_after * 1000 / factor)) if chosen.doze_after >= 0 else -1
    times = {"replica.sleep.after.ms": sleep_ms, "replica.doze.after.ms": doze_ms}
    return {name: str(value) for name, value in {**times, "metrics.per.partition": "false"}.items()}


class Sender:
    """Sends each record at its time; counts how long it took until it was acknowledged."""

    def __init__(self, writer: Writer, records: Sequence[Due], factor: float) -> None:
        self._writer, self._records, self._factor = writer, records, factor
        self._took_ms: list[float] = []
        self._failed: list[str] = []

    def run(self, began_s: float, is_over: threading.Event) -> None:
        """Send until the day or the run is over."""
        for record in self._records:
            due_s = began_s + record.at_s / self._factor
            self._writer.wait_until(due_s)
            if is_over.is_set():
                return
            self._send(record.partition, due_s)

    def _send(self, partition: int, due_s: float) -> None:
        def done(error: str) -> None:
            if error:
                self._failed.append(error)
            else:
                self._took_ms.append((time.monotonic() - due_s) * 1000)

        self._writer.send_later(partition, VALUE, done)

    def outcome(self) -> Outcome:
        """Percentiles; raises Unavailable when records failed."""
        self._writer.flush(DEADLINE_S)
        if self._failed:
            raise Unavailable(
                f"{len(self._failed)} of {len(self._records)} records failed, one with: {self._failed[0]}"
            )
        return in_percentiles("record", self._took_ms)


def run(chosen: argparse.Namespace, scratch: Path, results: Results) -> None:
    """Run the day; samples are in `results` as they come."""
    factor = DAY_S / (chosen.minutes * 60)
    records = day(chosen.partitions, chosen.seed)
    (port,) = free_ports(1)
    peer = RaylogAtRest(scratch, 1, DEADLINE_S, {**config(chosen), "metrics.port": str(port)})
    samples: list[Outcome] = []
    name = f"{chosen.partitions:,} partitions, RF 1"
    results.measured.append(Measured(SCENARIO, name, "raylog", "cpu_cores", samples))
    is_over = threading.Event()
    try:
        peer.start(Deadline(DEADLINE_S))
        peer.create(TOPIC, chosen.partitions, 1, Deadline(DEADLINE_S))
        results.versions |= {f"raylog: {item}": text for item, text in peer.describe().items()}
        writer = peer.writer(TOPIC)
        sender = Sender(writer, records, factor)
        with ThreadPoolExecutor(2) as pool:
            try:
                began_s = time.monotonic()
                sent = pool.submit(sender.run, began_s, is_over)
                watch(Watch(peer.not_servers(), port, pool), began_s, chosen.minutes * 60, samples)
                sent.result(DEADLINE_S)
                results.measured.append(Measured(SCENARIO, name, "raylog", "p50_ms", [sender.outcome()]))
            finally:
                is_over.set()
                writer.close()
    finally:
        peer.end()


def watch(watching: Watch, began_s: float, day_s: float, samples: list[Outcome]) -> None:
    """Look at the processes all day, and add a sample every ten minutes of it."""
    for number in range(1, SAMPLES + 1):
        until_s = began_s + day_s * number / SAMPLES
        while (left_s := until_s - time.monotonic()) > LOOK_S:
            time.sleep(min(LOOK_S, left_s - LOOK_S / 2))
            watching.look()
        time.sleep(max(0.0, until_s - time.monotonic()))
        samples.append({"hour": round(24 * number / SAMPLES, 3), **watching.sample()})
        if number % 6 == 0:
            line = ", ".join(f"{what} {value:.3g}" for what, value in samples[-1].items())
            print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run, keep the samples, draw them."""
    chosen = arguments()
    settings = {name: getattr(chosen, name) for name in ("minutes", "partitions", "sleep_after", "doze_after", "seed")}
    habits = {habit.name: f"{habit.share:.0%} of the partitions, {habit.per_day:g} records a day" for habit in HABITS}
    about = {**settings, **habits, "config": config(chosen), "open files": open_files()}
    results = Results(machine.describe(), machine.versions(), about)
    folder = chosen.results / f"day-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    with scratch_folder(chosen.data) as scratch:
        try:
            run(chosen, scratch, results)
        finally:
            results.machine |= machine.at_end()
            results.write(folder / "results.json")
    try:
        draw(results, folder / "day.svg")
    except Missing as error:
        print(error, file=sys.stderr)
    print(f"Kept in {folder}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
