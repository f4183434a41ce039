"""The load of `raylog perf produce`: one `Producer.send` per record, at a fixed rate or as fast as it goes.

Measuring the latency reads the clock once per record. With a rate, latency counts from the moment when the record was
due: so a stall shows in every record that had to wait for it, not only in the one that was being sent.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raylog.cli.perf.stats import Latencies

if TYPE_CHECKING:
    from raylog.client.producer.producer import Producer, SendFuture

POOL_RECORDS = 1_000
POOL_BYTES = 32 << 20
clock = time.perf_counter


class Run:
    """Consecutive records of one batch: when each was sent, their size in bytes, and when all were stored (seconds)."""

    __slots__ = ("_ended", "done_s", "error", "is_steady", "sent_s", "size")

    def __init__(self, ended: deque[Run], *, is_steady: bool) -> None:
        self._ended = ended
        self.is_steady = is_steady
        self.sent_s: list[float] = []
        self.size = 0
        self.done_s = 0.0
        self.error: BaseException | None = None

    def end(self, future: SendFuture) -> None:
        """Note that the batch is done. Runs on the client's thread, so the thread that sends does the counting."""
        self.done_s = clock()
        self.error = future.exception(0)
        self._ended.append(self)


class Load:
    """Sends records and keeps the statistics; `failed` and `first_error` report records that were not stored."""

    def __init__(self, producer: Producer, topic: str, throughput: float, stats: Latencies) -> None:
        """`throughput` is in records a second; 0 or less: no limit."""
        self._producer = producer
        self._topic = topic
        self._throughput = throughput
        self._stats = stats
        self.steady_stats: Latencies | None = None
        self._began_s = clock()
        self._sent = 0
        self._ended: deque[Run] = deque()
        self.failed = 0
        self.first_error: BaseException | None = None

    def send(self, payloads: Iterator[bytes], count: int) -> None:
        """Send so many records, and count those that are stored meanwhile."""
        send, topic, ended = self._producer.send, self._topic, self._ended
        pace_s = 1 / self._throughput if self._throughput > 0 else 0.0
        began_s, first = self._began_s, self._sent
        is_steady = self.steady_stats is not None
        batch: object = None
        run = Run(ended, is_steady=is_steady)
        for number, payload in zip(range(first, first + count), payloads, strict=False):
            now_s = clock()
            if pace_s:
                due_s = began_s + number * pace_s
                if due_s > now_s:
                    time.sleep(due_s - now_s)
                now_s = due_s
            future = send(topic, payload)
            # A run has the records of one batch, so it ends where the next record goes into another batch.
            if future._batch is not batch:
                self._count()
                batch = future._batch
                run = Run(ended, is_steady=is_steady)
                future.add_done_callback(run.end)
            run.sent_s.append(now_s)
            run.size += len(payload)
        self._sent += count

    def finish(self) -> None:
        """Wait until everything is stored or has failed, and count it."""
        self._producer.flush()
        self._count()

    def _count(self) -> None:
        """Count the runs that have ended. Called between two runs, so none of them is still growing."""
        while self._ended:
            run = self._ended.popleft()
            if run.error is not None:
                self.failed += len(run.sent_s)
                self.first_error = self.first_error or run.error
                continue
            self._stats.add_run(run.sent_s, run.done_s, run.size)
            if run.is_steady and self.steady_stats is not None:
                self.steady_stats.add_run(run.sent_s, run.done_s, run.size)


def random_payloads(size: int) -> Iterator[bytes]:
    """Endless payloads of random capital letters, from a pool that is made beforehand and repeated."""
    chance = random.Random(0)
    count = max(1, min(POOL_RECORDS, POOL_BYTES // size))
    letters = bytes(range(65, 91)) * 9  # 234 letters; the rest of the 256 byte values get letters as well
    table = letters + letters[: 256 - len(letters)]
    return itertools.cycle([chance.randbytes(size).translate(table) for _ in range(count)])


def file_payloads(path: Path, delimiter: bytes, say: Callable[[str], object]) -> Iterator[bytes]:
    """Endless payloads, drawn at random from the parts of a file. Raises ClickException for an empty file."""
    say(f"Reading payloads from: {path.absolute()}")
    parts = path.read_bytes().split(delimiter)
    if parts and not parts[-1]:
        parts.pop()  # a delimiter at the end of the file ends the last payload, it does not begin another
    if not parts:
        raise click.ClickException(f"{path} is empty; give a file with at least one payload")
    say(f"Number of messages read: {len(parts)}")
    return itertools.cycle(random.Random(0).choices(parts, k=max(len(parts), 10 * POOL_RECORDS)))


def counting_payloads() -> Iterator[bytes]:
    """0, 1, 2, ... as text."""
    return (b"%d" % number for number in itertools.count())
