"""How long the log of a group coordinator gets, and how fast it loads: ``python -m tools.offsets_age``.

A synthetic life of one partition of ``__consumer_offsets``, in a real log on disk with the topic's own configuration:
groups commit, each commit a batch of its own, and the log is cleaned as often as a replica looks. At its longest it is
copied, and loaded into a new machine as a coordinator loads it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from raylog.actors.coordinators.live_rows import LiveRows
from raylog.actors.coordinators.state_log import READ_BYTES, EncodedRow, encoded_row
from raylog.actors.naming import OFFSETS_TOPIC
from raylog.actors.settings import cleaner_pace, topic_settings
from raylog.core.controller.coordinators import COMPACTED
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import CoordinatorMachine, GroupSettings
from raylog.core.groups.records import OffsetCommitted, OffsetKey
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.log.partition_log import PartitionLog

BEGIN_MS = 1_700_000_000_000


class Life:
    """One partition of the offsets topic, with one coordinator that writes it."""

    def __init__(self, folder: Path) -> None:
        config, _ = topic_settings(COMPACTED, {}, internal=True)
        self.log = PartitionLog.open(
            folder / "live", config, topic_id="0" * 32, topic=OFFSETS_TOPIC, partition=0, now_ms=BEGIN_MS
        )
        self.backoff_ms = cleaner_pace({}).backoff_ms
        self.longest: list[bytes] = []
        """The log when it was longest, in fetches."""
        self.written = self.rows = self.cleanings = self.longest_bytes = 0
        self._next_look_ms = BEGIN_MS + self.backoff_ms
        self._sequence = 0

    def commit(self, now_ms: int, rows: list[EncodedRow]) -> None:
        """Append a commit as a coordinator does, and clean when it is due."""
        meta = BatchMeta(1, 0, self._sequence)
        batch = encode_batch([key for key, _ in rows], [value for _, value in rows], [now_ms] * len(rows), meta=meta)
        self.log.append_as_leader(batch, 0, now_ms)
        self._sequence += len(rows)
        self.rows += len(rows)
        self.written += len(batch)
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + self.backoff_ms
            self.look(now_ms)

    def look(self, now_ms: int) -> None:
        """Clean the log if it is due."""
        rules = self.log.config.compaction
        assert rules is not None  # by the topic's configuration
        self.log.sync()
        if self.log.size_bytes > self.longest_bytes:
            self.longest_bytes, self.longest = self.log.size_bytes, self._fetches()
        order = self.log.order_cleaning(self.log.log_end_offset, now_ms, rules)
        if order is not None:
            self.log.take_cleaned(clean(order), now_ms)
            self.log.purge_deleted(now_ms + 10**9)
            self.cleanings += 1

    def _fetches(self) -> list[bytes]:
        found, offset, end = [], self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            found.append(self.log.read(offset, READ_BYTES, end))
            behind = LiveRows().gather(found[-1], 0)
            assert behind is not None  # a read has at least one batch
            offset = behind
        return found


def load(fetches: list[bytes], end: int) -> tuple[int, int, float]:
    """Load a log into a new machine; return its rows, those that are live, and the processor's seconds it took."""
    began = time.process_time()
    rows = LiveRows()
    for fetch in fetches:
        rows.gather(fetch, end)
    machine = CoordinatorMachine(settings=GroupSettings(), share=EVERY_KEY, new_member_id=lambda client: client)
    live = 0
    for key, value in rows:
        machine.replay(key, value)
        live += 1
    machine.loaded(0)
    return rows.rows_read, live, time.process_time() - began


def main() -> None:
    """Live, load, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--a-second", type=float, default=1_000.0, help="commits a second")
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="partitions that each group reads")
    parser.add_argument("--together", type=int, default=1, help="partitions in one commit")
    options = parser.parse_args()
    keys = [
        OffsetKey(f"group-{group}", "0" * 32, "orders", partition)
        for partition in range(options.partitions)
        for group in range(options.groups)
    ]
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder))
        now_ms = BEGIN_MS
        for number in range(options.commits):
            now_ms = BEGIN_MS + int(number * 1000 / options.a_second)
            rows = []
            for at in range(number * options.together, (number + 1) * options.together):
                committed = OffsetCommitted(
                    key=keys[at % len(keys)], offset=at, leader_epoch=1, metadata="", committed_ms=now_ms
                )
                rows.append(encoded_row(*committed.to_wire())[0])
            life.commit(now_ms, rows)
        life.look(now_ms)
        rows_read, live, seconds = load(life.longest, life.log.log_end_offset)
        print(f"{options.commits:,} commits, {life.rows:,} offsets, {len(keys):,} keys: {life.written / 1e6:,.1f} MB")
        print(f"{life.cleanings} cleanings; the log was {life.longest_bytes / 1e6:.1f} MB long at most")
        print(f"it is loaded in {seconds:.2f} s of processor time then: {rows_read:,} rows, of which {live:,} are live")
        life.log.close()


if __name__ == "__main__":
    main()
