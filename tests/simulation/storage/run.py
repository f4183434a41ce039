"""One seed of the profile `storage`: the shipped log on a virtual disk, a series of calls, and crashes at any of them.

After every crash the log is opened, compared with the model, which is a list (`checks`), and used further. The disk
fails syncs, fills up, fails reads, runs out of descriptors and is damaged. Only the code for damage knows the layout of
the log's files.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from raylog.base.errors import RaylogError
from raylog.storage.errors import LogDamaged, StorageIoError
from raylog.storage.log.checkpoints import _with_crc
from raylog.storage.log.kept_watermark import HIGH_WATERMARK, content_of
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.storage import checks, scrubs
from tests.simulation.storage.calls import Calls
from tests.simulation.storage.checks import require
from tests.simulation.storage.disk import Image, PowerLost, VirtualDisk
from tests.simulation.storage.lives import ROOT
from tests.simulation.world import Violation


class StorageRun(Calls):
    """The world of one seed."""

    def run(self) -> None:
        """Play to the end. Raises Violation."""
        with self.files.bound(), self._settings():
            self._open()
            verbs: list[Callable[[], None]] = []
            for verb, weight in self._verbs():
                verbs += [verb] * weight
            for _ in range(self.options.steps):
                self._step(self.draw.choice(verbs))
            self._crash(power=True)
            checks.check_lookups(self.log, self.model, self.draw)
            self.log.close()
            require(self.files.open_descriptors(self.disk) == 0, "S9", "a closed log holds descriptors")

    def _verbs(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.append, 24),
            (self.replicate, 8),
            (self.retry, 4),
            (self.refuse, 3),
            (self.leap, 1),
            (self.elect, 4),
            (self.sync, 12),
            (self.checkpoint, 4),
            (self.sync_beside_appends, 4),
            (self.commit, 8),
            (self.truncate, 4),
            (self.truncate_and_look_up, 2),
            (self.restart, 2),
            (self.delete_records, 3),
            (self.retain, 4),
            (self.purge, 3),
            (self.clean, 16 if self.options.cleans else 0),
            (self.change_folders, 5),
            (self.close, 3),
            (self.kill, 3),
            (self.cut_power, 4),
            (self.fail_sync, 2),
            (self.fail_write, 2),
            (self.fill_up, 3),
            (self.lack_descriptors, 2),
            (self.look_up, 4),
            (self.scrub, 2),
            (self.fail_reads, 1),
            (self.damage, 2),
        ]

    def _step(self, verb: Callable[[], None]) -> None:
        self.events += 1
        self.now_ms += self.draw.choice((0, 10, 1000))
        faults = self.disk.faults
        if self.draw.random() < self.options.fuses:
            faults.fuse = self.draw.randint(0, 12)
        self.note(verb.__name__)
        try:
            verb()
        except PowerLost:
            self._crash(power=self.draw.random() < 0.7)
        faults.fuse = None
        self.trace = hash((self.trace, self.model.end, self.model.start, self.disk.changes)) & ((1 << 61) - 1)

    # --- lives and faults ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The log is closed and reopened."""
        if self._done(self.log.close):
            self.model.floor = self.model.end
        self.kept.close()
        self._open()

    def kill(self) -> None:
        """The process is killed."""
        self._crash(power=False)

    def cut_power(self) -> None:
        """The machine goes down."""
        self._crash(power=True)

    def fail_sync(self) -> None:
        """The disk fails to write back, and reports it once; the process ends, and perhaps the machine."""
        faults = self.disk.faults
        if self.draw.random() < 0.3:
            for path, file in self.disk.files():
                if path.suffix == ".log" and file.pending:
                    self.disk.fail_write_back(file)
                    self.write_back_failed += 1
        else:
            faults.failing_syncs = 1
        try:
            self.sync()
        finally:
            faults.failing_syncs = 0

    def fail_write(self) -> None:
        """A write fails after part of its bytes, and perhaps the first cut after it."""
        self.disk.faults.failing_writes = 1
        self.disk.faults.failing_cuts = self.draw.choice((0, 0, 1))
        try:
            self.draw.choice((self.append, self.replicate, self.elect, self.commit, self.truncate))()
        finally:
            self.disk.faults.failing_writes = self.disk.faults.failing_cuts = 0
        if self.draw.random() < 0.5:
            for _ in range(self.draw.randint(1, 4)):
                self.append()
            if self.draw.random() < 0.5:
                self.sync()
            self.cut_power()

    def fill_up(self) -> None:
        """The disk accepts a few more bytes and then none, until there is room again."""
        faults = self.disk.faults
        faults.room = self.draw.choice((0, 50, 700, 5000))
        calls = (self.append, self.append, self.replicate, self.sync, self.elect, self.commit, self.truncate)
        try:
            cleans = (self.clean,) if self.options.cleans else ()
            for verb in self.draw.choices((*calls, *cleans, self.retain, self.look_up, self.close), k=6):
                self.note(f"  on a full disk: {verb.__name__}")
                verb()
        finally:
            faults.room = None

    def lack_descriptors(self) -> None:
        """The process has no descriptor left."""
        for _ in range(self.draw.randint(0, 8)):
            self.append()
        self.disk.faults.no_descriptors = True
        try:
            for verb in self.draw.choices((self.append, self.sync, self.commit, self.elect, self.retain), k=3):
                verb()
        finally:
            self.disk.faults.no_descriptors = False
        if self.draw.random() < 0.5:
            self.sync()
            self.cut_power()

    def fail_reads(self) -> None:
        """Reads fail, even during an opening; nothing may be truncated because of that."""
        self.disk.kill()
        self.disk.faults.read_errors = 0.4
        for _ in range(3):
            try:
                self._open_log()
            except StorageIoError:
                pass
            except RaylogError as error:
                raise Violation("S8", f"a disk that cannot be read passes for damage: {error}") from error
            self.disk.kill()
        self.disk.faults.read_errors = 0.0
        self._open()

    # --- damage ----------------------------------------------------------------------------------------------------

    def damage(self) -> None:
        """Bytes change, or a file is lost, on a disk not in use; the log is a copy of the real one."""
        self.log.close() if self.draw.random() < 0.5 else None
        self.disk.lose_power()
        image = self.disk.image()
        self._open()  # the real one: the model now has its contents
        disk, floor = self.disk, self.log.recovery_point
        hurt = _hurt(image, self.draw, self.model.end)
        if hurt is not None:
            name, what, batch_file = hurt
            self.note(f"  {what} of {name}")
            self._new_disk(image)
            self._open_damaged(image, name, batch_file)
            if batch_file and not self.options.relaxed:
                self._open_after_kill(image, random.Random(f"{self.trace} {self.events}"))
        del floor
        self.files.mount(ROOT, disk)

    def _open_damaged(self, image: Image, name: str, batch_file: bool) -> None:
        folder = image["t-0"]
        assert isinstance(folder, dict)
        point = folder.get("recovery-point-checkpoint", b"0\n0\n")
        assert isinstance(point, bytes)
        try:
            log = self._open_log()
        except (LogDamaged, StorageIoError) as error:
            is_known = batch_file or name in KNOWN_DAMAGED
            require(is_known, "S8", f"a file that can be made again passes for damage of the log: {error}")
            return
        if batch_file:
            checks.check_damaged(log, self.model, min(int(point.split()[1]), self.model.end))
            scrubs.check_found(log, self.draw.choice((1, 1000, 1 << 20)))
        else:
            self._check_copy(log)

    def _open_after_kill(self, image: Image, draw: random.Random) -> None:
        """The same damage, had the process been killed before it wrote its last recovery point, with a kept watermark.

        Draws for itself: the rest of the run is as it was.
        """
        folder = image["t-0"]
        assert isinstance(folder, dict)
        committed = draw.randint(self.log.log_start_offset, self.model.end)
        folder.pop("clean-shutdown", None)
        point = draw.randint(0, self.log.recovery_point)
        folder["recovery-point-checkpoint"] = _with_crc(f"0\n{point}\n").encode()
        folder[HIGH_WATERMARK] = content_of(committed)
        self.files.mount(ROOT, VirtualDisk(draw.getrandbits(48), sector=self.sector, image=image))
        try:
            log = self._open_log()
        except (LogDamaged, StorageIoError):
            return
        checks.check_damaged(log, self.model, committed)

    def _check_copy(self, log: PartitionLog) -> None:
        """A copy with a damaged file that could be made again is a whole log."""
        checks.check_content(log, self.model, self.model.end)
        checks.check_lookups(log, self.model, self.draw)
        checks.check_producers(log, self.model)


CAN_BE_MADE_AGAIN = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "clean-shutdown")
KNOWN_DAMAGED = ("recovery-point-checkpoint", "log-start-offset-checkpoint", "partition.metadata")
"""Files with a flipped bit that a log is not opened with, unless it is whole."""


def _hurt(image: Image, draw: random.Random, end: int) -> tuple[str, str, bool] | None:
    """Change one file of the image; returns its name, the change, and whether it holds batches."""
    folder = image.get("t-0")
    assert isinstance(folder, dict)
    names = [name for name in sorted(folder) if name.endswith((".log", *CAN_BE_MADE_AGAIN, *KNOWN_DAMAGED))]
    name = draw.choice(names)
    content = folder[name]
    assert isinstance(content, bytes)
    batch_file = name.endswith(".log")
    if not batch_file and name not in KNOWN_DAMAGED and draw.random() < 0.4:
        if name.endswith(".txnindex"):
            return None  # written durably, and only where it is needed: nothing else says that there was one
        del folder[name]
        return name, "loss", False
    if not content:
        return None
    place = draw.randrange(len(content))
    changed = bytearray(content)
    changed[place] ^= 1 << draw.randrange(8)
    folder[name] = bytes(changed)
    return name, f"a flipped bit at byte {place} of {len(content)}, end {end},", batch_file
