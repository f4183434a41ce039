"""The calls of the profile `storage`: appends, syncs, truncations, deletions, retention, and the model of them."""

from __future__ import annotations

from raylog.storage.batch.header import PLAIN, stamp_all
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.log.validation import inspect
from tests.simulation.storage import checks
from tests.simulation.storage.checks import require
from tests.simulation.storage.lives import Lives
from tests.simulation.storage.model import Stored

PRODUCERS = (-1, -1, 7, 8, 9)


class Calls(Lives):
    """The calls of a log's owner and of its syncing thread."""

    def _payload(self, producer: int) -> tuple[bytes, tuple[int, ...], int]:
        count = self.draw.randint(1, 4)
        values: list[bytes | None] = []
        for _ in range(count):
            self.serial += 1
            values.append(b"%d:" % self.serial + self.draw.randbytes(self.draw.randint(0, self.options.record_bytes)))
        times = tuple(self.now_ms + self.draw.randint(-500, 500) for _ in range(count))
        first = self.model.next_sequence(producer) if producer >= 0 else -1
        meta = BatchMeta(producer, 0, first) if producer >= 0 else PLAIN
        return encode_batch(None, values, list(times), None, meta), times, first

    def _stored(self, epoch: int) -> tuple[bytes, Stored]:
        """A payload as a producer sends it, and as it will be stored in the file."""
        producer = self.draw.choice(PRODUCERS)
        payload, times, first = self._payload(producer)
        stamped = bytearray(payload)
        header = stamp_all(memoryview(stamped), inspect(payload), self.model.end, epoch)[-1]
        stored = Stored(self.model.end, header.next_offset, bytes(stamped), epoch, times, producer, first)
        self.model.tail = [stored]
        if epoch > self.model.epoch or not self.model.epochs:
            self.model.epochs_begun = [(epoch, self.model.end)]
        return payload, stored

    def append(self) -> None:
        """A producer's batch is appended."""
        payload, stored = self._stored(self.model.epoch)
        if self._done(lambda: self.log.append_as_leader(payload, stored.epoch, self.now_ms)):
            self._appended(stored)

    def replicate(self) -> None:
        """A leader's batch is appended, perhaps the first of an epoch."""
        _, stored = self._stored(self.model.epoch + self.draw.choice((0, 0, 1)))
        if self._done(lambda: self.log.append_as_follower(stored.data, self.now_ms)):
            self._appended(stored)

    def _appended(self, stored: Stored) -> None:
        self.model.appended(stored)
        self.model.settled()
        self.appends += 1
        end = self.log.log_end_offset
        require(end == stored.end, "S2", f"after an append the log ends at {end}, not at {stored.end}")

    def retry(self) -> None:
        """A producer retries its last batch."""
        last = self.model.last_of(self.draw.choice((7, 8, 9)))
        if last is None or last.base < self.log.segments[0].base_offset:
            return
        answers = []
        if self._done(lambda: answers.append(self.log.append_as_leader(last.data, self.model.epoch, self.now_ms))):
            place = (answers[0].duplicate, answers[0].first_offset)
            require(place == (True, last.base), "S5", f"a batch stored at {last.base} is taken again: {answers[0]}")

    def elect(self) -> None:
        """A leader epoch begins."""
        epoch, start = self.model.epoch + self.draw.randint(1, 2), self.model.end
        self.model.epochs_begun = [(epoch, start)]
        if self._done(lambda: self.log.assign_leader_epoch(epoch, start)):
            self.model.assigned(epoch, start)
            self.model.settled()

    def sync(self) -> None:
        """Appended batches are synced to disk."""
        before = self.model.end
        ends: list[int] = []
        if self._done(lambda: ends.append(self.log.sync())):
            self._synced(ends[0], before)

    def _synced(self, end: int, before: int) -> None:
        require(before <= end <= self.model.end, "S1", f"a sync reports {end}, {before} were appended before it")
        self.model.floor = end

    def sync_beside_appends(self) -> None:
        """A worker thread syncs while the owner appends, releases files and truncates."""
        before, ends, cut_at, faults = self.model.end, list[int](), list[int](), self.disk.faults

        def owner(call: str) -> None:
            if call == "fdatasync":
                faults.pace = None
                for _ in range(self.draw.randint(1, 3)):
                    self.append()
                if self.draw.random() < 0.3:
                    for segment in self.log.segments[:-1]:
                        segment.release()
                if self.draw.random() < 0.3:
                    self.truncate()
                    cut_at.append(self.model.end)
                    self.append()

        faults.pace = owner
        try:
            if self._done(lambda: ends.append(self.log.sync())):
                self._synced(ends[0], min(before, *cut_at) if cut_at else before)
        finally:
            faults.pace = None

    def commit(self) -> None:
        """The high watermark moves up and is persisted, now and then durably."""
        model = self.model
        known = max(model.committed, model.end if self.options.relaxed else model.floor)
        watermark = known if self.draw.random() < 0.5 else self.draw.randint(model.committed, known)
        model.committed = watermark
        durable, model.kept = self.draw.random() < 0.4, 0
        self.kept.want(watermark)
        if self._done(lambda: self.kept.keep(durable=durable)):
            model.kept = watermark if durable and not self.options.relaxed else 0
            checks.check_watermark(self.kept, model, model.end)

    def truncate(self) -> None:
        """The end is truncated, as when a new leader has another history."""
        model = self.model
        low = model.start if self.draw.random() < 0.3 else max(model.committed, model.start)
        offset = self.draw.randint(low, max(low, model.end + 1))
        end = model.cut_end(offset)
        model.kept = 0
        self.kept.lower(min(offset, end))
        model.committed = min(model.committed, offset, end)
        if end < self.log.segments[0].base_offset:
            return
        floor = model.floor
        model.floor, model.cutting = min(model.floor, end), True
        model.start_wanted = min(model.start, end)
        if self._done(lambda: self.log.truncate_to(offset)):
            if offset < model.end:
                model.cut(offset)
            else:
                model.epochs = [entry for entry in model.epochs if entry[1] < offset]
            model.settled()
            found = self.log.log_end_offset
            require(found == model.end, "S2", f"cut at {offset}, the log ends at {found} and not at {model.end}")
            checks.check_producers(self.log, model)
        elif end < self.log.log_end_offset:
            model.floor = min(floor, self.log.log_end_offset)

    def restart(self) -> None:
        """Everything is dropped: the leader's log start has overtaken this log."""
        model, offset = self.model, self.model.end + self.draw.randint(0, 50)
        model.kept = 0
        self.kept.lower(0)
        model.committed = model.floor = 0
        model.restart = model.start_wanted = offset
        if self.draw.random() < 0.5:
            self.disk.faults.fuse = self.draw.randint(0, 20)
        if self._done(lambda: self.log.truncate_fully_and_start_at(offset)):
            model.restarted(offset)
            model.settled()

    def delete_records(self) -> None:
        """Records below an offset are deleted."""
        if self.model.committed <= self.model.start:
            return
        offset = self.draw.randint(self.model.start, self.model.committed)
        self.model.start_wanted = offset
        if self._done(lambda: self.log.advance_log_start(offset)):
            self.model.settled()
            if offset > self.model.start:  # else nothing is changed, not even epochs that begin too early
                self.model.starts_at(offset, durable=True)

    def retain(self) -> None:
        """Old segments are deleted."""
        watermark = min(self.model.committed, self.model.end)
        self.model.start_wanted = max(watermark, self.model.start)
        if self._done(lambda: self.log.apply_retention(self.now_ms, watermark)):
            start = self.log.log_start_offset
            require(start <= max(watermark, self.model.start), "S3", f"retention removed up to {start} of {watermark}")
            self.model.settled()
            if start > self.model.start:
                self.model.starts_at(start, durable=False)

    def purge(self) -> None:
        """Files that retention left are removed."""
        self._done(lambda: self.log.purge_deleted(self.now_ms))

    def change_folders(self) -> None:
        """The broker makes, removes or sets aside the folder of another partition."""
        self._done(self.folders.change)

    def look_up(self) -> None:
        """Something is read."""
        if self._done(lambda: checks.check_lookups(self.log, self.model, self.draw)):
            checks.check_content(self.log, self.model, self.model.end)
