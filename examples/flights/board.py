"""Three consumers of one group, each a Ray task, read everything; the result is compared with the file."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import raylog
from examples.flights.checks import Checks
from examples.flights.data import Flights

MEMBERS = 3
DEADLINE_S = 120.0


class _Row(msgspec.Struct):
    row: int


@dataclass
class Share:
    """One member's records: (offset, row number) by carrier in read order, and counts by partition."""

    member: str
    rows: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    partitions: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(self.partitions.values())

    def take(self, batches: dict[raylog.TopicPartition, list[raylog.Record]]) -> int:
        """Record one poll and return its number of records."""
        decode = msgspec.json.Decoder(_Row).decode
        taken = 0
        for place, records in batches.items():
            for record in records:
                row = decode(record.value or b"").row
                self.rows.setdefault(record.key or b"", []).append((record.offset, row))
            self.partitions[place.partition] = self.partitions.get(place.partition, 0) + len(records)
            taken += len(records)
        return taken


@ray.remote(num_cpus=0)
class Tally:
    """Counts the records of all members, so that each knows when to stop and the driver can show progress."""

    def __init__(self) -> None:
        """Start at zero."""
        self._read = 0

    def add(self, count: int) -> int:
        """Add and return the sum."""
        self._read += count
        return self._read


@ray.remote(num_cpus=0)
def read_share(member: str, topic: str, group: str, expected: int, tally: Any) -> Share:
    """Read as one member of the group until the group as a whole has read ``expected`` records."""
    share = Share(member)
    deadline = time.monotonic() + DEADLINE_S
    with raylog.Consumer(
        topic, group_id=group, client_id=member, auto_offset_reset="earliest", max_poll_records=20_000
    ) as consumer:
        while time.monotonic() < deadline:
            taken = share.take(consumer.poll(timeout_ms=200))
            if ray.get(tally.add.remote(taken)) >= expected:
                consumer.commit()
                return share
    return share


def consume(console: Console, checks: Checks, topic: str, group: str, flights: Flights) -> None:
    """Read everything with three members; check count, order by key, and absence of duplicates against the file."""
    began = time.monotonic()
    tally: Any = Tally.remote()  # type: ignore[attr-defined]
    tasks = [
        read_share.remote(f"member-{member}", topic, group, len(flights), tally) for member in range(1, MEMBERS + 1)
    ]
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with progress:
        bar = progress.add_task(f"Consuming as group {group}", total=len(flights))
        waiting = list(tasks)
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.2)
            progress.update(bar, completed=ray.get(tally.add.remote(0)))
    shares: list[Share] = ray.get(tasks)
    ray.kill(tally)
    _show(console, shares, time.monotonic() - began)
    _check(checks, shares, flights)


def _show(console: Console, shares: list[Share], seconds: float) -> None:
    table = Table(title=f"Partitions by consumer ({seconds:.1f} s)")
    for column in ("member", "partitions", "records", "carriers"):
        table.add_column(column, justify="right" if column == "records" else "left")
    for share in shares:
        carriers = ", ".join(key.decode() for key in sorted(share.rows))
        parts = ", ".join(str(partition) for partition in sorted(share.partitions) if share.partitions[partition])
        table.add_row(share.member, parts, f"{share.count:,}", carriers)
    console.print(table)


def _check(checks: Checks, shares: list[Share], flights: Flights) -> None:
    checks.equal("records read by the group", sum(share.count for share in shares), len(flights))
    backwards = [share.member for share in shares for rows in share.rows.values() if rows != sorted(rows)]
    checks.equal("members that met a carrier's records out of order", backwards, [])
    read = _rows_by_key(shares)
    checks.equal("distinct flights read", sum(len(set(rows)) for rows in read.values()), len(flights))
    checks.equal("carriers whose flights differ from the file", _differing(read, flights), [])


def _rows_by_key(shares: list[Share]) -> dict[bytes, list[int]]:
    """Return each carrier's row numbers in offset order, over all members."""
    merged: dict[bytes, list[tuple[int, int]]] = {}
    for share in shares:
        for key, rows in share.rows.items():
            merged.setdefault(key, []).extend(rows)
    return {key: [row for _, row in sorted(rows)] for key, rows in merged.items()}


def _differing(read: dict[bytes, list[int]], flights: Flights) -> list[str]:
    expected = flights.rows_by_key()
    return sorted(key.decode() for key in expected.keys() | read.keys() if read.get(key) != expected.get(key))


def committed(topic: str, group: str) -> dict[int, int]:
    """Return the group's committed offsets by partition."""
    with raylog.Consumer(group_id=group, enable_auto_commit=False) as consumer:
        parts = sorted(consumer.partitions_for_topic(topic))
        offsets = {part: consumer.committed(raylog.TopicPartition(topic, part)) for part in parts}
    return {part: -1 if offset is None else offset for part, offset in offsets.items()}


def read_on(topic: str, group: str, wait_s: float = 5.0) -> int:
    """Return the number of records behind the group's committed offsets."""
    found = 0
    deadline = time.monotonic() + wait_s
    with raylog.Consumer(topic, group_id=group, auto_offset_reset="earliest") as consumer:
        while time.monotonic() < deadline:
            found += sum(len(records) for records in consumer.poll(timeout_ms=200).values())
    return found


def reread(console: Console, checks: Checks, topic: str, flights: Flights) -> None:
    """Read everything again without a group and compare with the file."""
    began = time.monotonic()
    share = Share("reader")
    with raylog.Consumer(auto_offset_reset="earliest", max_poll_records=20_000) as consumer:
        consumer.assign([raylog.TopicPartition(topic, item) for item in sorted(consumer.partitions_for_topic(topic))])
        while share.count < len(flights) and time.monotonic() < began + DEADLINE_S:
            share.take(consumer.poll(timeout_ms=500))
    console.print(f"  read {share.count:,} records again in {time.monotonic() - began:.1f} s")
    checks.equal("records after the restart", share.count, len(flights))
    checks.equal("carriers that differ after the restart", _differing(_rows_by_key([share]), flights), [])
