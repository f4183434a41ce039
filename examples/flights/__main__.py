"""Runs the demo; exits non-zero on any mismatch. ``python -m examples.flights [--limit N] [--data-dir D]``."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

import raylog
from examples.flights import analytics, board, data, feed
from examples.flights.checks import Checks
from examples.flights.screen import own_lines_only, step

TOPIC = "flights"
GROUP = "board"
BROKERS = 3
MARKER = ".raylog-demo"
LOG = "ray-and-spark.log"
NO_RETENTION_LIMIT = {"retention.ms": -1}
"""Unlimited: the flights have timestamps of 2013, so the default of seven days would delete them within minutes."""


def main() -> int:
    """Run every step; returns the process's exit code."""
    arguments = _arguments()
    root = fresh_directory(arguments.data_dir)
    log = root / LOG
    try:
        with own_lines_only(log) as console:
            console.print(f"What Ray and Spark have to say goes to {log}.")
            return _run(console, root, arguments)
    except BaseException:  # an interrupt too: the log is named, and the error goes on
        print(f"The demo ended early; {log} may say why.", file=sys.stderr)
        raise


def _run(console: Console, root: Path, arguments: argparse.Namespace) -> int:
    checks = Checks(console)
    started = time.monotonic()
    with step(console, "Reading the flights"):
        flights = data.load(arguments.limit)
    console.print(f"  {len(flights):,} flights, {len(set(flights.keys))} carriers")
    _first_life(console, checks, root, flights, with_spark=not arguments.no_spark)
    _second_life(console, checks, root, flights)
    console.print(checks.table())
    console.print(f"The main job took {time.monotonic() - started:.0f} s; the data is in {root}.")
    return 0 if checks.all_hold else 1


def _first_life(console: Console, checks: Checks, root: Path, flights: data.Flights, *, with_spark: bool) -> None:
    with step(console, f"Starting Ray and {BROKERS} brokers"):
        cluster = raylog.start(root, brokers=BROKERS)
    try:
        with step(console, f"Creating topic {TOPIC}: 3 partitions, replication factor 3"), raylog.Admin() as admin:
            admin.create_topic(TOPIC, partitions=3, replication_factor=3, config=NO_RETENTION_LIMIT)
            replicas = sum(len(partition.replicas) for partition in admin.describe_topic(TOPIC).partitions)
            checks.equal("replica actors", replicas, 9)
        feed.produce(console, checks, cluster, TOPIC, flights)
        board.consume(console, checks, TOPIC, GROUP, flights)
        if with_spark:
            analytics.compare(console, checks, TOPIC, flights)
        checks.remember("offsets", board.committed(TOPIC, GROUP))
    finally:
        with step(console, "Stopping everything"):
            cluster.stop()


def _second_life(console: Console, checks: Checks, root: Path, flights: data.Flights) -> None:
    with step(console, "Starting again on the same directories"):
        cluster = raylog.start(root)
    try:
        board.reread(console, checks, TOPIC, flights)
        checks.equal("committed offsets after the restart", board.committed(TOPIC, GROUP), checks.remembered("offsets"))
        checks.equal("records the group reads again", board.read_on(TOPIC, GROUP), 0)
    finally:
        cluster.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--limit", type=int, default=None, help="use only the first N flights (default: all 336,776)")
    parser.add_argument("--data-dir", type=Path, default=Path("demo-data"), help="where the brokers keep their files")
    parser.add_argument("--no-spark", action="store_true", help="leave the Spark part out")
    return parser.parse_args()


def fresh_directory(path: Path) -> Path:
    """Return an empty directory; only one made by an earlier demo is removed."""
    path = path.absolute()
    if path.exists():
        if not (path / MARKER).exists():
            sys.exit(f"{path} exists and was not made by the demo; name another one with --data-dir.")
        shutil.rmtree(path)
    path.mkdir(parents=True)
    (path / MARKER).touch()
    return path


if __name__ == "__main__":
    sys.exit(main())
