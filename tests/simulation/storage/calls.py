"""The calls of the profile `storage`: appends, syncs, truncations, deletions, retention, and the model of them."""

from __future__ import annotations

from raylog.base.errors import RaylogError
from raylog.storage.batch.header import PLAIN, iter_headers, stamp
from raylog.storage.batch.records import BatchMeta
from raylog.storage.cleaner.cleaning import Cleaned, CleaningOrder, clean
from raylog.storage.errors import CorruptBatch
from raylog.storage.files import exists, list_files
from raylog.storage.log.config import AppendInfo, CompactionRules
from raylog.storage.segments.segment import DELETED, LOG, Segment
from tests.simulation.storage import checks, payloads, scrubs
from tests.simulation.storage.checks import require
from tests.simulation.storage.lives import Lives
from tests.simulation.storage.model import Records, Stored
from tests.simulation.storage.shell import Shell
from tests.simulation.world import Violation

PRODUCERS = (-1, -1, 7, 8, 9)


class Calls(Lives):
    """The calls of a log's owner and of its syncing thread."""

    def _records(self) -> Records:
        options = self.options
        records = payloads.draw_records(self.draw, self.serial, self.now_ms, options.record_bytes, options.keys)
        self.serial += len(records.timestamps)
        return records

    def _stored(self, epochs: list[int]) -> tuple[bytes, list[Stored]]:
        """A payload as producers send it, a batch for each leader epoch; and its batches as the file will hold them."""
        model, sent, stored, end = self.model, b"", list[Stored](), self.model.end
        for epoch in epochs:
            producer, records = self.draw.choice(PRODUCERS), self._records()
            meta = self._meta(producer, stored)
            payload = payloads.encode(self.draw, records, meta)
            stamped = bytearray(payload)
            stamp(stamped, 0, end, epoch)
            next_offset = end + len(records.timestamps)
            last = Stored(end, next_offset, bytes(stamped), epoch, records, *meta[:1], meta[2], meta[1])
            sent, stored, end = sent + payload, [*stored, last], next_offset
        model.tail = stored
        latest = model.epoch if model.epochs else -1
        model.epochs_begun = [(batch.epoch, batch.base) for batch in stored if batch.epoch > latest]
        return sent, stored

    def _meta(self, producer: int, stored: list[Stored]) -> BatchMeta:
        """What a batch of a producer says of it, behind those in the log and in `stored`."""
        return BatchMeta(producer, *self._turn(self.model.last_of(producer, stored))) if producer >= 0 else PLAIN

    def _turn(self, last: Stored | None) -> tuple[int, int]:
        """The epoch and the sequence with which a producer goes on."""
        if last is None:
            return 0, 0
        if self.draw.random() < 0.1 or self.model.may_have_forgotten(last):
            return last.producer_epoch + 1, 0
        return last.producer_epoch, last.last_sequence + 1

    def append(self) -> None:
        """Batches of producers are appended."""
        payload, stored = self._stored([self.model.epoch] * self.draw.choice((1, 1, 1, 2, 3)))
        answers: list[AppendInfo] = []
        epoch = stored[0].epoch
        if self._done(lambda: answers.append(self.log.append_as_leader(payload, epoch, self.now_ms))):
            self._appended(stored, answers[0])

    def replicate(self) -> None:
        """A leader's batches are appended, perhaps the first of an epoch or of several."""
        epochs = [self.model.epoch + self.draw.choice((0, 0, 1))]
        while self.draw.random() < 0.3:
            epochs.append(epochs[-1] + self.draw.choice((0, 0, 1, 2)))
        _, stored = self._stored(epochs)
        data, answers = b"".join(batch.data for batch in stored), list[AppendInfo]()
        if self._done(lambda: answers.append(self.log.append_as_follower(data, self.now_ms))):
            self._appended(stored, answers[0])

    def _appended(self, stored: list[Stored], answer: AppendInfo) -> None:
        for batch in stored:
            self.model.appended(batch)
        self.model.settled()
        self.appends += 1
        end = self.log.log_end_offset
        require(end == stored[-1].end, "S2", f"after an append the log ends at {end}, not at {stored[-1].end}")
        newest = max(batch.newest for batch in stored)
        expected = (stored[0].base, end, False, newest, len(stored))
        require(answer[:5] == expected, "S2", f"the answer to an append is {answer}, and not {expected}")
        for batch in stored:
            self.seen_ms[batch.producer] = self.now_ms
        active = self.log.segments[-1]
        if active.base_offset == stored[0].base:
            self.begun_ms[active.base_offset] = self.now_ms
        begun_ms = self.begun_ms.setdefault(active.base_offset, self.now_ms)
        if active.base_offset < stored[0].base:
            config = self.options.config
            is_due = active.size > config.segment_bytes or self.now_ms - begun_ms >= config.segment_ms
            require(not is_due, "S12", f"{active.size} bytes from {begun_ms} on are in one segment of {config}")

    def retry(self) -> None:
        """A producer retries one of its last batches, or two of them."""
        producer = self.draw.choice((7, 8, 9))
        known = [
            batch
            for batch in self.model.turn_of(producer)[-payloads.BATCHES_KNOWN :]
            if batch.first_sequence >= 0
            and batch.base
            >= max(
                self.log.segments[0].base_offset,
                self.model.known_from.get(producer, 0),
                self.model.cleaned_to,
                self.model.forgotten_to,
            )
        ]
        if not known:
            return
        first = self.draw.randrange(len(known))
        again = known[first : first + self.draw.choice((1, 1, 2))]
        data, answers = b"".join(batch.data for batch in again), list[AppendInfo]()
        if self._done(lambda: answers.append(self.log.append_as_leader(data, self.model.epoch, self.now_ms))):
            place = (answers[0].duplicate, answers[0].first_offset, answers[0].end_offset)
            expected = (True, again[0].base, again[-1].end)
            require(place == expected, "S5", f"a batch stored at {expected[1:]} is taken again: {answers[0]}")

    def refuse(self) -> None:
        """Something arrives that must not be appended: nothing changes."""
        turn = self.model.turn_of(self.draw.choice((7, 8, 9)))
        is_known = bool(turn) and turn[-1].producer in self.log.producers.producers
        is_known = is_known and not self.model.may_have_forgotten(turn[-1])
        kind = self.draw.choice(("damaged", "attributes", "body", *(["turn"] * 3 if is_known else [])))
        if kind == "turn":
            if any(batch.base < self.model.cleaned_to for batch in turn[-payloads.BATCHES_KNOWN :]):
                turn = turn[-payloads.BATCHES_KNOWN :]  # in the place of one that was cleaned it knows an earlier one
            payload, expected = payloads.draw_out_of_turn(self.draw, self._records(), turn)
        elif kind == "body":
            payload, expected = payloads.draw_unopened(self.draw, self._records())
        elif kind == "attributes":
            payload, expected = payloads.draw_attributes(self.draw, self._records())
        else:
            whole = [payloads.encode(self.draw, self._records(), PLAIN) for _ in range(self.draw.randint(1, 2))]
            payload, expected = payloads.draw_damaged(self.draw, whole)
        self._refused(kind, payload, expected)

    def _refused(self, what: str, payload: bytes, expected: type[RaylogError]) -> None:
        log = self.log
        before = (log.log_end_offset, log.size_bytes, list(log.epochs.entries), log.producers.to_bytes())
        try:
            answer = log.append_as_leader(payload, self.model.epoch, self.now_ms)
        except RaylogError as error:
            if type(error) is not expected:
                raise Violation("S13", f"{what}: {error!r}, and not {expected.__name__}") from error
        else:
            raise Violation("S13", f"{what}: it is taken, and not refused as {expected.__name__}: {answer}")
        after = (log.log_end_offset, log.size_bytes, list(log.epochs.entries), log.producers.to_bytes())
        require(before == after, "S13", f"{what}: what was refused has changed the log")

    def leap(self) -> None:
        """A leader sends batches that do not continue the log: nothing changes."""
        if not self.log.size_bytes:
            return
        _, stored = self._stored([self.model.epoch] * self.draw.choice((1, 2)))
        self.model.settled()
        moved = bytearray(stored[-1].data)
        stamp(moved, 0, stored[-1].base + self.draw.choice((-1, 1, 2)), stored[-1].epoch)
        data, before = b"".join(batch.data for batch in stored[:-1]) + moved, self.log.size_bytes
        try:
            self.log.append_as_follower(data, self.now_ms)
        except CorruptBatch:
            end = self.log.log_end_offset
            require((end, self.log.size_bytes) == (self.model.end, before), "S13", "a leap has changed the log")
        else:
            raise Violation("S13", f"batches that leap are taken at {self.model.end}")

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
        sync = self.draw.choice((self.log.sync, self.log.sync_records))
        if self._done(lambda: ends.append(sync())):
            self._synced(ends[0], before)

    def checkpoint(self) -> None:
        """The recovery point is written, if it is due or early, a while after a sync."""
        self.log.checkpoint(early=self.draw.random() < 0.5)

    def _synced(self, end: int, before: int) -> None:
        require(before <= end <= self.model.end, "S1", f"a sync reports {end}, {before} were appended before it")
        self.model.floor = end
        self.model.ghosts = [batch for batch in self.model.ghosts if batch.base > before]

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
        low = self._lowest_cut()
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
        if self._done(lambda: self._shell().cut(offset)):
            if offset < model.end:
                model.cut(offset)
            else:
                model.epochs = [entry for entry in model.epochs if entry[1] < offset]
            model.settled()
            found = self.log.log_end_offset
            require(found == model.end, "S2", f"cut at {offset}, the log ends at {found} and not at {model.end}")
            checks.check_producers(self.log, model)
            self.note_producers()
        elif end < self.log.log_end_offset:
            model.floor = min(floor, self.log.log_end_offset)

    def _shell(self) -> Shell:
        return Shell(self.log, self.kept, lambda: self.now_ms)

    def _lowest_cut(self) -> int:
        model = self.model
        return model.start if self.draw.random() < 0.3 else max(model.committed, model.start)

    def truncate_and_look_up(self) -> None:
        """The end is truncated, and others are appended and read in its place."""
        self.truncate()
        for _ in range(self.draw.randint(1, 4)):
            self.append()
        self.look_up()

    def restart(self) -> None:
        """Everything is dropped: the leader's log start has overtaken this log."""
        model, offset = self.model, self.model.end + self.draw.randint(0, 50)
        model.kept = 0
        self.kept.lower(0)
        model.committed = model.floor = 0
        model.restart = model.start_wanted = offset
        if self.draw.random() < 0.5:
            self.disk.faults.fuse = self.draw.randint(0, 20)
        if self._done(lambda: self._shell().begin_again(offset)):
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
                self._starts_at(offset, durable=True)

    def _starts_at(self, offset: int, *, durable: bool) -> None:
        before = list(self.model.epochs)
        self.model.starts_at(offset, durable=durable)
        if self.log.epochs.entries == before:  # a full disk: epochs may begin too early
            self.model.epochs = before

    def retain(self) -> None:
        """Old segments are deleted, and no others; producers that were idle for long are forgotten, and no others."""
        model, config = self.model, self.options.config
        watermark = min(model.committed, model.end)
        model.start_wanted = max(watermark, model.start)
        expected = checks.start_after_retention(self.log, model, config, self.now_ms, watermark)
        idle_ms = {producer: self.now_ms - self.seen_ms.get(producer, 0) for producer in self.log.producers.producers}
        forgotten = {
            producer
            for producer, ms in idle_ms.items()
            if ms >= config.producer_id_expiration_ms and not self._keeps(producer)
        }
        for producer in forgotten:
            model.known_from[producer] = model.end
        removed: list[int] = []
        if self._done(lambda: removed.extend(self.log.apply_retention(self.now_ms, watermark))):
            start = self.log.log_start_offset
            require(start <= max(watermark, model.start), "S3", f"retention removed up to {start} of {watermark}")
            first = self.log.segments[0].base_offset
            require(first == expected, "S12", f"after retention the first segment begins at {first}, not at {expected}")
            left = set(self.log.producers.producers)
            require(left == set(idle_ms) - forgotten, "S5", f"{left} are left of the producers idle for {idle_ms} ms")
            for base in removed:
                due_ms = self.now_ms + config.file_delete_delay_ms
                self.deleted_ms[self.log.folder / f"{base:020d}.log{DELETED}"] = due_ms
            model.settled()
            self._starts_at(start, durable=False)
        elif (start := self.log.log_start_offset) > model.start:
            # A full disk has no room for the segment that follows the active one: those before it are removed.
            require(start <= watermark, "S3", f"retention removed up to {start} of {watermark}")
            self._starts_at(start, durable=False)

    def _keeps(self, producer: int) -> bool:
        """Whether the log remembers an idle producer."""
        return False

    def clean(self) -> None:
        """A cleaner works on the sealed segments, while the owner appends, and perhaps truncates."""
        model, options = self.model, self.options
        rules = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=options.tombstones_ms)
        checks.check_age(self.log, model, self.cleaning.cleanable(model.committed, self.now_ms, rules))
        orders: list[CleaningOrder | None] = []
        if not self._done(lambda: orders.append(self.cleaning.order_cleaning(model.committed, self.now_ms, rules))):
            return
        order = orders[0]
        if order is None:
            return
        upper, end = min(model.committed, self.log.synced_end_offset), order.next_offset
        require(end <= upper, "S14", f"a log is cleaned up to {end}, and {upper} is committed and on disk")
        results: list[Cleaned] = []
        if not self._done(
            lambda: results.append(
                clean(order, memory_bytes=options.cleaner_bytes, range_records=options.range_records)
            )
        ):
            return
        self.draw.choice((_nothing, _nothing, self.append, self.sync, self.truncate, self.retain))()
        cleaned = results[0]
        base, end = order.segments[0].base_offset, order.next_offset
        whole = [batch for batch in model.batches if base <= batch.base < end]
        taken: list[bool] = []
        replaced = [segment.base_offset for old, _ in cleaned.pairs for segment in old]
        if order.generation == self.log.generation and self.log.segments[0] is order.segments[0]:
            model.cleanings = [self._cleaned(order, old, new, whole) for old, new in cleaned.pairs]
        if self.draw.random() < 0.3:
            self.disk.faults.fuse = self.draw.randint(0, 20)
        if self._done(lambda: taken.append(self.cleaning.take_cleaned(cleaned, cleaned.order.now_ms))):
            require(taken[0] or not model.cleanings, "S14", "a log that was not cut refuses what was cleaned of it")
            if taken[0]:
                self._swapped(replaced)
                model.take_cleaned()
            else:
                cleaned.discard()
            model.settled()

    def _cleaned(
        self, order: CleaningOrder, old: tuple[Segment, ...], new: Segment, whole: list[Stored]
    ) -> list[Stored]:
        data = new.read(0, new.size)
        after = [Stored.cleaned(data[at : at + header.size]) for at, header in iter_headers(data)]
        base, end = old[0].base_offset, old[-1].next_offset
        before = [batch for batch in whole if base <= batch.base < end]
        times = (order.now_ms, order.delete_retention_ms)
        checks.check_cleaned(before, after, whole, order.producers, times)
        return after

    def _swapped(self, replaced: list[int]) -> None:
        """The replaced files are due later, and every segment's name is that of its first offset."""
        due_ms = self.now_ms + self.options.config.file_delete_delay_ms
        for path in list_files(self.log.folder, LOG + DELETED):
            if int(path.name.split(".")[0]) in replaced:
                self.deleted_ms[path] = due_ms

    def purge(self) -> None:
        """Files that retention left are removed when they are due, and not before."""
        if self._done(lambda: self.log.purge_deleted(self.now_ms)):
            for path, due_ms in list(self.deleted_ms.items()):
                is_due = due_ms <= self.now_ms
                require(exists(path) != is_due, "S12", f"{path.name}, due at {due_ms}, is there: {not is_due}")
                if is_due:
                    del self.deleted_ms[path]

    def change_folders(self) -> None:
        """The broker makes, removes or sets aside the folder of another partition."""
        self._done(self.folders.change)

    def scrub(self) -> None:
        """The batches are read again, to find damage."""
        is_full, size = self.disk.faults.room is not None, self.draw.choice((1, 1000, 1 << 20))
        self._done(lambda: scrubs.check_whole(self.log, size, may_lack_indexes=is_full))

    def look_up(self) -> None:
        """Something is read."""
        if self._done(lambda: checks.check_lookups(self.log, self.model, self.draw)):
            checks.check_content(self.log, self.model, self.model.end)


def _nothing() -> None:
    """The owner does nothing meanwhile."""
