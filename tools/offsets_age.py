"""How long the log of a group coordinator gets, and how fast it loads: ``python -m tools.offsets_age --days 1``.

A synthetic life of one partition of ``__consumer_offsets``: a group commits all its partitions every few seconds.
The coordinator's own runner decides, rows are encoded as its shell encodes them; what a deletion removes is dropped.
The log at its longest is loaded into a new machine, and the time is taken. Rounds repeat, so a day shows a year.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

import msgspec

from raylog.actors.groups.offsets_log import EncodedRow, encoded_row
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.core.groups.coordinator import CoordinatorMachine, GroupSettings
from raylog.core.groups.events import LogExtent
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import decode_batch, encode_batch

BATCH_BYTES = 1_048_000


class Commit:
    """A commit of a simple consumer, as a coordinator receives it."""

    method = "offset_commit"
    is_deserted = False

    def __init__(self, offsets: list[list[object]]) -> None:
        self.args: Any = ["board", -1, "", offsets, None]

    def reply(self, args: object = None, payload: object = b"") -> None:
        """Nothing waits for the answer."""

    def fail(self, error: BaseException) -> None:
        """A refusal ends the measurement."""
        raise error


class Life:
    """One coordinator and its log in memory, stored at once; a batch is (offset behind it, bytes)."""

    def __init__(self, settings: GroupSettings) -> None:
        self.log: deque[tuple[int, bytes]] = deque()
        self.end = self.written = self.kept = self.longest = self.rounds = self.time_ms = 0
        self.longest_log: list[bytes] = []
        self._deletions: list[int] = []
        machine = CoordinatorMachine(settings=settings, new_member_id=lambda client: client)
        self._runner: GroupCoordinatorRunner[Commit, EncodedRow] = GroupCoordinatorRunner(machine, self)
        self._runner.serve()

    def commit(self, now_ms: int, offsets: list[list[object]]) -> None:
        """Commit, let time pass, and carry everything out."""
        self.time_ms = now_ms
        self._runner.receive(Commit(offsets))
        self._store()
        self._runner.tick()
        self._store()

    def propose_sleep(self) -> None:
        """The settings have no such time."""

    def _store(self) -> None:
        while taken := self._runner.take_batch(BATCH_BYTES):
            self._append([key for key, _ in taken], [value for _, value in taken])
            self._runner.stored()
        while self._deletions:
            self._delete(self._deletions.pop())

    def _append(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        batch = encode_batch(keys, values, [0] * len(keys))
        self.end += len(keys)
        self.written += len(batch)
        self.kept += len(batch)
        self.log.append((self.end, batch))

    def _delete(self, before: int) -> None:
        if self.kept > self.longest:
            self.longest, self.longest_log = self.kept, [batch for _, batch in self.log]
        while self.log and self.log[0][0] <= before:
            self.kept -= len(self.log.popleft()[1])
        self.rounds += 1
        self._runner.trimmed(before)

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the time of the last commit."""
        return self.time_ms

    def wall_ms(self) -> int:
        """Return the time of the last commit."""
        return self.time_ms

    def log_extent(self) -> LogExtent:
        """Return how far the log is stored."""
        return LogExtent(end_offset=self.end, size_bytes=self.written)

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        """Return a row as it is stored, and its size."""
        return encoded_row(key, value)

    def wake_writer(self) -> None:
        """Rows are stored at the end of the step."""

    def trim(self, before_offset: int) -> None:
        """Delete the beginning of the log at the end of the step."""
        self._deletions.append(before_offset)

    def fatal(self, reason: str) -> None:
        """A defect ends the measurement: the runner raises it."""
        print(reason)


def load(settings: GroupSettings, batches: list[bytes]) -> tuple[int, float]:
    """Load a log into a new machine; return its rows and the processor's seconds it took."""
    machine = CoordinatorMachine(settings=settings, new_member_id=lambda client: client)
    rows, began = 0, time.process_time()
    for batch in batches:
        columns = decode_batch(batch, 0, parse_header(batch))
        for key, value in zip(columns.keys or [], columns.values or [], strict=True):
            machine.replay(msgspec.msgpack.decode(key or b""), None if value is None else msgspec.msgpack.decode(value))
            rows += 1
    return rows, time.process_time() - began


def main() -> None:
    """Run the days and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between commits")
    options = parser.parse_args()
    settings = GroupSettings()
    life = Life(settings)
    commits = int(options.days * 86_400 / options.every_s)
    for number in range(commits):
        offsets: list[list[object]] = [["0" * 32, "orders", at, number, 1, ""] for at in range(options.partitions)]
        life.commit(int(number * options.every_s * 1000), offsets)
    rows, seconds = load(settings, life.longest_log or [batch for _, batch in life.log])
    a_year = life.written / options.days * 365
    longest = max(life.longest, life.kept)
    print(f"{commits:,} commits of {options.partitions} offsets in {options.days:g} days: {life.written / 1e6:,.1f} MB")
    print(f"{life.rounds} rounds; the log was {longest / 1e6:.1f} MB long at most")
    print(f"it is loaded in {seconds:.2f} s of processor time then: {rows:,} rows")
    print(f"without rounds a year has {a_year / 1e9:.0f} GB, for {a_year / longest * seconds / 60:,.0f} minutes")


if __name__ == "__main__":
    main()
