"""How long the log of a group coordinator gets, and how fast it loads: ``python -m tools.offsets_age --days 1``.

A synthetic life of one partition of ``__consumer_offsets``: a group commits all its partitions every few seconds.
The coordinator's own machine decides, rows are encoded as its shell encodes them; what a deletion removes is dropped.
The log at its longest is loaded into a new machine, and the time is taken. Rounds repeat, so a day shows a year.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import msgspec

from raylog.actors.offsets_log import encoded_row
from raylog.core.groups import events as ev
from raylog.core.groups.coordinator import CoordinatorMachine, GroupSettings
from raylog.core.groups.writing import WriteQueue
from raylog.storage.records import decode_batch, encode_batch, parse_header

BATCH_BYTES = 1_048_000


class Life:
    """One coordinator and its log in memory; a batch is (offset behind it, bytes)."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.machine = CoordinatorMachine(settings=settings, new_member_id=lambda client: client)
        self.machine.loaded(0, wall_ms=0)
        self.log: deque[tuple[int, bytes]] = deque()
        self.end = self.written = self.kept = self.longest = self.rounds = 0
        self.longest_log: list[bytes] = []
        self._queue: WriteQueue[tuple[bytes, bytes | None], ev.Effect] = WriteQueue(BATCH_BYTES)

    def step(self, event: ev.Event) -> None:
        """Feed an event and carry everything out at once."""
        out = self.machine.step(event)
        rows = [
            encoded_row(*row) for effect in out.now if isinstance(effect, ev.AppendRecords) for row in effect.records
        ]
        trims = [effect.before_offset for effect in out.now if isinstance(effect, ev.TrimLog)]
        done = self._queue.add(rows, out.after_sync)
        while not self._queue.is_idle:
            taken = self._queue.take()
            if taken:
                self._append([key for key, _ in taken], [value for _, value in taken])
            done += self._queue.stored()
        for before in trims:
            self._trim(before, event.now_ms)
        if any(isinstance(effect, ev.ReportStored) for effect in done):
            self.step(ev.RowsStored(cause="stored", now_ms=event.now_ms))

    def _append(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        batch = encode_batch(keys, values, [0] * len(keys))
        self.end += len(keys)
        self.written += len(batch)
        self.kept += len(batch)
        self.log.append((self.end, batch))

    def _trim(self, before: int, now_ms: int) -> None:
        if self.kept > self.longest:
            self.longest, self.longest_log = self.kept, [batch for _, batch in self.log]
        while self.log and self.log[0][0] <= before:
            self.kept -= len(self.log.popleft()[1])
        self.rounds += 1
        self.step(ev.LogTrimmed(cause="trim", now_ms=now_ms, before_offset=before))

    def extent(self) -> ev.LogExtent:
        """Return the log as the machine is told of it."""
        return ev.LogExtent(end_offset=self.end, size_bytes=self.written)


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
    """Live through the days and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between commits")
    options = parser.parse_args()
    settings = GroupSettings()
    life = Life(settings)
    commits = int(options.days * 86_400 / options.every_s)
    names = [("0" * 32, "orders", number) for number in range(options.partitions)]
    for number in range(commits):
        now_ms = int(number * options.every_s * 1000)
        offsets = [(*name, number, 1, "") for name in names]
        life.step(
            ev.OffsetCommitReceived(
                cause="commit",
                now_ms=now_ms,
                request=number,
                group="board",
                generation=-1,
                member_id="",
                offsets=offsets,
            )
        )
        life.step(ev.Tick(cause="tick", now_ms=now_ms, wall_ms=now_ms, log=life.extent()))
    rows, seconds = load(settings, life.longest_log or [batch for _, batch in life.log])
    a_year = life.written / options.days * 365
    longest = max(life.longest, life.kept)
    print(f"{commits:,} commits of {options.partitions} offsets in {options.days:g} days: {life.written / 1e6:,.1f} MB")
    print(f"{life.rounds} rounds; the log was {longest / 1e6:.1f} MB long at most")
    print(f"it is loaded in {seconds:.2f} s of processor time then: {rows:,} rows")
    print(f"without rounds a year has {a_year / 1e9:.0f} GB, for {a_year / longest * seconds / 60:,.0f} minutes")


if __name__ == "__main__":
    main()
