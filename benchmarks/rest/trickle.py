"""A trickle of records over all partitions, while the server's processes are read. May touch: the clock, a producer."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.job import Outcome
from benchmarks.peers.processes import Unavailable
from benchmarks.report import stats
from benchmarks.rest.measure import due, records_within
from benchmarks.rest.peer import Writer

VALUE = b"trickle " * 12


def trickle(
    writer: Writer, partitions: int, per_minute: float, window_s: float, flush_s: float, is_over: Callable[[], bool]
) -> Outcome:
    """Send the records of the window until `is_over`, each at its time; percentiles are from there to its outcome."""
    count = records_within(window_s, partitions, per_minute)
    took_ms: list[float] = []
    failed: list[str] = []
    began_s = time.monotonic()

    def send(partition: int, due_s: float) -> None:
        def done(error: str) -> None:
            if error:
                failed.append(error)
            else:
                took_ms.append((time.monotonic() - due_s) * 1000)

        writer.send_later(partition, VALUE, done)

    for number in range(count):
        partition, after_s = due(number, partitions, per_minute)
        writer.wait_until(began_s + after_s)
        if is_over():
            break
        send(partition, began_s + after_s)
    writer.flush(flush_s)
    if failed:
        raise Unavailable(f"{len(failed)} of {count} records of the trickle failed, the first because {failed[0]}")
    return in_percentiles("trickle", took_ms)


def in_percentiles(prefix: str, took_ms: list[float]) -> Outcome:
    """Number, p50, p99 and maximum of times in milliseconds. Pure."""
    found = stats.percentiles(took_ms)
    names = {"p50": "p50_ms", "p99": "p99_ms", "max": "max_ms"}
    return {f"{prefix}_records": len(took_ms), **{f"{prefix}_{to}": found[name] for name, to in names.items()}}
