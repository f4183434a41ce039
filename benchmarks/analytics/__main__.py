"""`python -m benchmarks.analytics ROW...`: measure rows alone, on one broker of Raylog and one of Kafka."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.__main__ import CACHE, ROOT, keep, run_scenario, stop
from benchmarks.analytics.rows import ROWS, as_scenario
from benchmarks.analytics.sizes import Sizes, sizes_for
from benchmarks.bench import FULL, QUICK, Bench
from benchmarks.peers.base import Peer
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.raylog_peer import Raylog
from benchmarks.report.results import Results
from benchmarks.report.tables import as_markdown

PEERS = ("raylog", "kafka")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options; `sizes` is made of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analytics", description=__doc__)
    parser.add_argument("rows", nargs="+", metavar="ROW", help=f"{', '.join(ROWS)}, or all")
    parser.add_argument("--peers", default=",".join(PEERS), help="servers, parted by commas (default: %(default)s)")
    parser.add_argument("--records", type=int, help="records of 100 bytes of a batch read; others in proportion")
    parser.add_argument("--seconds", type=float, help="seconds of each stream")
    parser.add_argument("--rounds", type=int, help="rounds of each contestant (default: 5, quick 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes; also QUICK=1")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where JSON is kept")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()), help="where servers keep their data")
    chosen = parser.parse_args(given)
    chosen.quick = chosen.quick or os.environ.get("QUICK", "") not in ("", "0")
    chosen.rows = list(ROWS) if chosen.rows == ["all"] else chosen.rows
    chosen.peers = chosen.peers.split(",")
    for what, names, known in (("rows", chosen.rows, tuple(ROWS)), ("--peers", chosen.peers, PEERS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"{what} can be {', '.join(known)}, not {', '.join(unknown)}")
    if chosen.records is not None and chosen.records < 1:
        parser.error("--records takes a number from 1")
    chosen.sizes = _sizes(chosen)
    return chosen


def _sizes(chosen: argparse.Namespace) -> Sizes:
    sizes = sizes_for(quick=chosen.quick)
    if chosen.records:
        sizes = sizes.with_records(chosen.records)
    return dataclasses.replace(sizes, stream_s=chosen.seconds) if chosen.seconds else sizes


def main() -> int:
    """Run the rows; the exit status is 1 when records were lost or counted twice."""
    chosen = arguments()
    pace = QUICK if chosen.quick else FULL
    if chosen.rounds:
        pace = dataclasses.replace(pace, rounds=chosen.rounds, slow_rounds=chosen.rounds)
    pace = dataclasses.replace(pace, limit_s=FULL.limit_s)  # the servers alone take a part of a quick run's time
    settings = {**dataclasses.asdict(pace), **dataclasses.asdict(chosen.sizes), "brokers": 1}
    results = Results(machine.describe(), machine.versions(), settings)
    scratch = Path(tempfile.mkdtemp(prefix="rlb-", dir=chosen.data))
    os.environ.setdefault("RAY_TMPDIR", str(scratch / "ray"))
    every: list[Peer] = [Raylog(scratch, 1), Kafka(scratch, CACHE, 1)]
    bench = Bench([peer for peer in every if peer.name in chosen.peers], pace, results, scratch, CACHE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = chosen.results / f"analytics-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    try:
        bench.start()
        for name in chosen.rows:
            run_scenario(bench, f"scenario {name}", as_scenario(ROWS[name], chosen.sizes))
    finally:
        results.machine |= machine.at_end()
        keep(results, folder)
        stop(bench)
        shutil.rmtree(scratch, ignore_errors=True)
    print(as_markdown(results))
    for what, why in results.left_out.items():
        print(f"Left out: {what}, because {why}")
    print(f"Kept in {folder}.")
    return 1 if results.miscounts() else 0


if __name__ == "__main__":
    sys.exit(main())
