"""Compares the replicas' logs on disk after a run, and turns them into reads for the checker.

Every replica in sync must hold the same bytes below the high watermark, batch for batch; of a compacted topic, whose
replicas clean their own logs, records that differ in no other way than cleaners may leave them. Reads files only, after
the cluster has stopped.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from raylog.storage.directory import parse_partition_folder
from raylog.storage.segments.dump import BatchRow, ProblemRow, RecordRow, dump_folder
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.evidence.history import Poll, Seen
from tests.compacted import Row, difference

Place = tuple[str, int]
"""Topic and partition."""


class End(NamedTuple):
    """State of a partition, as the cluster reported it before it stopped."""

    high_watermark: int
    in_sync: frozenset[int]
    is_asleep: bool = False


class Batch(NamedTuple):
    """One batch on one disk."""

    base_offset: int
    last_offset: int
    digest: str


@dataclass(slots=True)
class ReplicaLog:
    """The contents of one partition folder."""

    batches: list[Batch] = field(default_factory=list)
    records: list[tuple[int, bytes]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    """The records of a compacted topic, by offset."""
    problems: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Log end offset."""
        return self.batches[-1].last_offset + 1 if self.batches else 0


def read_logs(
    directories: Mapping[int, Path], *, values_of: str, compacted: Collection[str] = ()
) -> dict[Place, dict[int, ReplicaLog]]:
    """Every partition of every broker, by the brokers' directories; values are kept of some topics."""
    found: dict[Place, dict[int, ReplicaLog]] = defaultdict(dict)
    for broker, directory in sorted(directories.items()):
        for folder in sorted(directory.iterdir()):
            place = parse_partition_folder(folder.name)
            if place is not None and folder.is_dir():
                found[place][broker] = _read(folder, with_values=place[0] == values_of, with_rows=place[0] in compacted)
    return found


def _read(folder: Path, *, with_values: bool, with_rows: bool) -> ReplicaLog:
    log = ReplicaLog()
    name, content = "", b""
    for row in dump_folder(folder, records=with_values or with_rows):
        if isinstance(row, BatchRow):
            if row.file != name:
                name, content = row.file, (folder / row.file).read_bytes()
            digest = hashlib.sha256(content[row.position : row.position + row.size]).hexdigest()[:16]
            log.batches.append(Batch(row.base_offset, row.last_offset, digest))
            if not row.crc_valid:
                log.problems.append(f"{folder.name}/{row.file}: the checksum at byte {row.position} is wrong")
        elif isinstance(row, RecordRow) and with_rows:
            log.rows[row.offset] = Row(row.key, row.value, row.timestamp, row.headers or None)
        elif isinstance(row, RecordRow):
            log.records.append((row.offset, row.value or b""))
        elif isinstance(row, ProblemRow):
            log.problems.append(f"{folder.name}/{row.file}, byte {row.position}: {row.reason}")
    return log


def compare(
    logs: Mapping[Place, Mapping[int, ReplicaLog]], ends: Mapping[Place, End], compacted: Collection[str] = ()
) -> Iterable[Anomaly]:
    """Replicas that differ from one another below the high watermark, end before it, or are damaged."""
    for place, end in sorted(ends.items()):
        name = f"{place[0]}-{place[1]}"
        members = {broker: log for broker, log in logs.get(place, {}).items() if broker in end.in_sync}
        if end.is_asleep and not members:
            continue  # it was never used: no replica has had a process, nor a folder
        for broker in sorted(end.in_sync - members.keys()):
            yield Anomaly("replica missing", f"{name} has no folder on broker {broker}")
        below: dict[int, list[Batch]] = {}
        for broker, log in sorted(members.items()):
            for problem in log.problems:
                yield Anomaly("damaged log", f"broker {broker}: {problem}")
            below[broker] = [batch for batch in log.batches if batch.last_offset < end.high_watermark]
            reached = below[broker][-1].last_offset + 1 if below[broker] else 0
            if reached < end.high_watermark:
                what = f"{name} on broker {broker} ends at {reached}, below the high watermark {end.high_watermark}"
                yield Anomaly("replica behind", what)
        if place[0] in compacted:
            yield from _differences_of_rows(name, {broker: members[broker] for broker in below}, end.high_watermark)
        else:
            yield from _differences(name, below)


def _differences_of_rows(name: str, logs: Mapping[int, ReplicaLog], upto: int) -> Iterable[Anomaly]:
    brokers = sorted(logs)
    rows = {broker: {offset: row for offset, row in log.rows.items() if offset < upto} for broker, log in logs.items()}
    for broker in brokers[1:]:
        if found := difference(rows[brokers[0]], rows[broker], {}):
            yield Anomaly("replicas differ", f"{name} on brokers {brokers[0]} and {broker}: {found}")


def _differences(name: str, below: Mapping[int, list[Batch]]) -> Iterable[Anomaly]:
    brokers = sorted(below)
    for broker in brokers[1:]:
        for item, other in zip(below[brokers[0]], below[broker], strict=False):
            if item != other:
                yield Anomaly("replicas differ", f"{name}: broker {brokers[0]} has {item}, broker {broker} has {other}")
                break


def as_reads(
    logs: Mapping[Place, Mapping[int, ReplicaLog]],
    ends: Mapping[Place, End],
    topic: str,
    shared: Callable[[str], str] = str,
) -> tuple[list[Poll], dict[str, set[int]]]:
    """Each broker's logs below the high watermark as complete reads; and the partitions that each must hold.

    ``shared`` returns the interned copy of a value.
    """
    reads = []
    readers: dict[str, set[int]] = defaultdict(set)
    for (name, partition), replicas in sorted(logs.items()):
        end = ends.get((name, partition))
        if name != topic or end is None:
            continue
        for broker, log in sorted(replicas.items()):
            if broker in end.in_sync:
                reader = f"the log of broker {broker}"
                seen: list[Seen] = [
                    (partition, offset, shared(value.split(b" ", 1)[0].decode(errors="replace")))
                    for offset, value in log.records
                    if offset < end.high_watermark
                ]
                reads.append(Poll(reader, reader, tuple(seen)))
                readers[reader].add(partition)
    return reads, dict(readers)
