"""Spark and Ray Data on Raylog, beside what they are without it, on one broker of Raylog and one of Kafka."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks.analytics.rows import ROWS, as_scenario
from benchmarks.analytics.sizes import Sizes, sizes_for
from benchmarks.bench import FULL, QUICK, Bench
from benchmarks.options import CACHE, Parser, one_of, some_of
from benchmarks.page import conduct, run_scenario
from benchmarks.peers.base import Peer
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.raylog_peer import Raylog

PEERS = ("raylog", "kafka")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line's options; `sizes` is made of them."""
    parser = Parser("analytics", __doc__)
    add = parser.add_argument
    add("rows", nargs="+", metavar="ROW", type=one_of((*ROWS, "all")), help=f"{', '.join(ROWS)}, or all")
    add("--peers", type=some_of(PEERS), default=list(PEERS), help="servers, parted by commas (default: both)")
    add("--records", type=int, help="records of 100 bytes of a batch read; others in proportion")
    add("--seconds", type=float, help="seconds of each stream")
    add("--rounds", type=int, help="rounds of each contestant (default: 5, quick 2)")
    parser.add_quick("small sizes")
    parser.add_results()
    parser.add_data()
    chosen = parser.parse_args(given)
    chosen.rows = list(ROWS) if "all" in chosen.rows else chosen.rows
    if chosen.records is not None and chosen.records < 1:
        parser.error("--records takes a number from 1")
    chosen.sizes = _sizes(chosen)
    return chosen


def _sizes(chosen: argparse.Namespace) -> Sizes:
    sizes = sizes_for(quick=chosen.quick)
    if chosen.records:
        sizes = sizes.with_records(chosen.records)
    return dataclasses.replace(sizes, stream_s=chosen.seconds) if chosen.seconds else sizes


def main(given: Sequence[str]) -> int:
    """Run the rows; the exit status is 1 when records were lost or counted twice."""
    chosen = arguments(given)
    pace = QUICK if chosen.quick else FULL
    if chosen.rounds:
        pace = dataclasses.replace(pace, rounds=chosen.rounds, slow_rounds=chosen.rounds)

    def measure(bench: Bench) -> None:
        bench.start()
        for name in chosen.rows:
            run_scenario(bench, f"scenario {name}", as_scenario(ROWS[name], chosen.sizes))

    def peers(scratch: Path) -> list[Peer]:
        every: list[Peer] = [Raylog(scratch, 1), Kafka(scratch, CACHE, 1)]
        return [peer for peer in every if peer.name in chosen.peers]

    results = conduct(
        chosen,
        dataclasses.replace(pace, limit_s=FULL.limit_s),  # the servers alone take a part of a quick run's time
        {**dataclasses.asdict(chosen.sizes), "brokers": 1, "scenarios": ", ".join(chosen.rows)},
        peers,
        measure,
    )
    return 1 if results.miscounts() else 0
