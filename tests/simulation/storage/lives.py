"""The lives of a log in the profile `storage`: how it is opened, how a life ends, and the state an error may leave.

`calls` and `run` build on it. Every opening compares the log with the model (`checks`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from raylog.base.errors import RaylogError
from raylog.storage.cleaner import cleaning as cleaning_module
from raylog.storage.cleaner import rewriting as rewriting_module
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.survivors import RANGE_RECORDS
from raylog.storage.errors import DescriptorsExhausted, DiskFull, LogClosed, NotDurable, StorageIoError
from raylog.storage.files import list_files
from raylog.storage.log import partition_log as log_module
from raylog.storage.log.config import DAY_MS, LogConfig
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments import segment as segment_module
from raylog.storage.segments.segment import DELETED, LOG, RELATIVE_OFFSET_MAX
from tests.simulation.storage import checks
from tests.simulation.storage.checks import require
from tests.simulation.storage.disk import Image, PowerLost, VirtualDisk
from tests.simulation.storage.filesystem import VirtualFileSystem
from tests.simulation.storage.folders import Folders
from tests.simulation.storage.model import Model
from tests.simulation.storage.payloads import SOME, Keys
from tests.simulation.world import Violation

ROOT = Path("/virtual-disk")
FOLDER = ROOT / "t-0"
BEGAN_MS = 1_700_000_000_000
_STORY_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Options:
    """The seed's decisions for a whole run."""

    config: LogConfig
    steps: int
    hint_bytes: int
    checkpoint_seconds: float
    checkpoint_bytes: int
    record_bytes: int
    relative_max: int
    """The largest distance of an offset from its segment's first one."""
    aborted_max: int
    """After so many aborted transactions a segment ends."""
    relaxed: bool
    """Appended batches count as committed before they are synced."""
    fuses: float
    """Share of calls during which the power fails."""
    cleans: bool = False
    """Whether a cleaner works on the log."""
    tombstones_ms: int = 0
    cleaner_bytes: int = 1 << 20
    range_records: int = RANGE_RECORDS
    keys: Keys = SOME
    """What records are about."""

    @classmethod
    def drawn(cls, draw: random.Random) -> Options:
        """The options of a seed."""
        segment_bytes = draw.choice((500, 2000, 6000, 30_000))
        return cls(
            config=LogConfig(
                segment_bytes=segment_bytes,
                index_interval_bytes=draw.choice((1, 300, 4096)),
                segment_ms=draw.choice((7 * DAY_MS, 3000)),
                retention_ms=draw.choice((-1, -1, 4000)),
                retention_bytes=draw.choice((-1, 3 * segment_bytes)),
                file_delete_delay_ms=draw.choice((0, 5000)),
                producer_id_expiration_ms=draw.choice((DAY_MS, DAY_MS, 3000)),
            ),
            steps=draw.randint(40, 120),
            hint_bytes=draw.choice((200, 3000, 64 << 20)),
            checkpoint_seconds=draw.choice((0.0, 2.0, 1e9)),
            checkpoint_bytes=draw.choice((1000, 16 << 20)),
            record_bytes=draw.choice((10, 300, 3000)),
            relative_max=draw.choice((RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX, 200)),
            aborted_max=3 if segment_bytes == 6000 else 1 << 16,
            relaxed=draw.random() < 0.4,
            fuses=draw.choice((0.0, 0.1, 0.3)),
        )

    def with_cleaner(self, draw: random.Random) -> Options:
        """The same, with a cleaner that works on the log."""
        cleaner_bytes = draw.choice((1, 1 << 20))
        return replace(
            self,
            cleans=True,
            steps=2 * self.steps,
            tombstones_ms=draw.choice((0, 2000, DAY_MS)),
            cleaner_bytes=cleaner_bytes,
            range_records=5 if cleaner_bytes == 1 else RANGE_RECORDS,
            config=replace(self.config, segment_bytes=draw.choice((300, 800, 3000))),
            record_bytes=draw.choice((10, 100, 1000)),
            keys=draw.choice((SOME, Keys.few(2), Keys.few(3), Keys.few(12))),
        )


class Lives:
    """A log, its disk and its model, from life to life."""

    def __init__(self, seed: int, *, cleans: bool = False) -> None:
        """Draw the options; `run` does the rest. `cleans`: a cleaner works on the log."""
        self.draw = random.Random(seed)
        self.options = Options.drawn(self.draw)
        if cleans:
            self.options = self.options.with_cleaner(self.draw)
        self.files = VirtualFileSystem()
        self.sector = self.draw.choice((512, 512, 4096))
        self.disk = self._new_disk({})
        self.model = Model()
        self.folders = Folders(ROOT, self.draw)
        self.now_ms = BEGAN_MS
        self.write_back_failed = 0
        self.seen_ms: dict[int, int] = {}
        """When each producer was last active, as this life knows it at the latest."""
        self.begun_ms: dict[int, int] = {}
        """When the active segment got its first batch, by its base offset; the time of the opening in a later life."""
        self.deleted_ms: dict[Path, int] = {}
        """When each file that retention left is due."""
        self.serial = self.events = self.appends = self.crashes = 0
        self.trace = seed
        self.story: deque[str] = deque(maxlen=_STORY_LENGTH)
        self.log: PartitionLog
        self.kept: KeptWatermark

    @contextmanager
    def _settings(self) -> Iterator[None]:
        clock = SimpleNamespace(monotonic=lambda: (self.now_ms - BEGAN_MS) / 1000)
        with (
            patch.object(log_module, "time", clock),
            patch.object(log_module, "CHECKPOINT_SECONDS", self.options.checkpoint_seconds),
            patch.object(log_module, "CHECKPOINT_BYTES", self.options.checkpoint_bytes),
            patch.object(log_module, "ABORTED_MAX", self.options.aborted_max),
            patch.object(log_module, "RELATIVE_OFFSET_MAX", self.options.relative_max),
            patch.object(segment_module, "RELATIVE_OFFSET_MAX", self.options.relative_max),
            patch.object(cleaning_module, "RELATIVE_OFFSET_MAX", self.options.relative_max),
            patch.object(rewriting_module, "RELATIVE_OFFSET_MAX", self.options.relative_max),
            patch.object(segment_module, "HINT_BYTES", self.options.hint_bytes),
        ):
            yield

    def note(self, text: str) -> None:
        """Add a line to the story."""
        known = f"end {self.model.end:>5}  floor {self.model.floor:>5}"
        self.story.append(f"{self.now_ms - BEGAN_MS:>7} ms  {known}  {text}")

    def _new_disk(self, image: Image) -> VirtualDisk:
        disk = VirtualDisk(self.draw.getrandbits(48), sector=self.sector, image=image)
        self.files.mount(ROOT, disk)
        return disk

    def _open_log(self) -> PartitionLog:
        return PartitionLog.open(
            FOLDER,
            self.options.config,
            topic_id="a topic",
            topic="t",
            partition=0,
            now_ms=self.now_ms,
            end_in_doubt=self.options.relaxed,
        )

    def _open(self) -> None:
        self.log = self._open_undamaged()
        self.cleaning = LogCleaning(self.log)
        checks.check_opened(self.log, self.model)
        self._begin_life()
        self.kept = KeptWatermark(FOLDER, self.log.log_end_offset)
        checks.check_watermark(self.kept, self.model, self.model.end)
        self.model.committed = min(self.model.committed, self.model.end)

    def _begin_life(self) -> None:
        due_ms = self.now_ms + self.options.config.file_delete_delay_ms
        self.deleted_ms = dict.fromkeys(list_files(FOLDER, LOG + DELETED), due_ms)
        active = self.log.segments[-1]
        self.begun_ms = {active.base_offset: self.now_ms} if active.size else {}
        self.note_producers()

    def note_producers(self) -> None:
        """The log has read its producers from a snapshot and its batches."""
        for producer, entry in self.log.producers.producers.items():
            self.seen_ms[producer] = entry.last_seen_ms

    def _crash(self, *, power: bool) -> None:
        """End the process, or the machine, and open the log again; perhaps with a crash during the opening."""
        self.crashes += 1
        self.note("CRASH of the machine" if power else "CRASH of the process")
        if power:
            self.disk.lose_power()
            if self.draw.random() < 0.4:
                self._open_again_and_again(self.disk.image())
        else:
            self.disk.kill()
        self.disk.faults.room = None
        self.disk.faults.failing_writes = self.disk.faults.failing_cuts = 0
        self.folders.check(power=power)
        self._open()

    def _open_again_and_again(self, image: Image) -> None:
        """Open a copy without a crash, and another with crashes during the opening: the results must be equal."""
        disk, found = self.disk, []
        for crashes in (0, self.draw.randint(1, 3)):
            copy = self._new_disk(image)
            for _ in range(crashes):
                copy.faults.fuse = self.draw.randint(0, 15)
                try:
                    self._open_undamaged().close()
                except PowerLost:
                    copy.lose_power()
                else:
                    copy.kill()
            log = self._open_undamaged()
            found.append((log.log_start_offset, log.log_end_offset, log.epochs.entries, checks.read_all(log)))
        self.files.mount(ROOT, disk)
        once, again = found
        require(once == again, "S9", f"opened at once: {once[:3]}; with crashes in between: {again[:3]}")

    def _open_undamaged(self) -> PartitionLog:
        try:
            return self._open_log()
        except StorageIoError as error:
            require("sync" in str(error) and self.write_back_failed > 0, "S9", f"a log does not open: {error}")
            self.write_back_failed -= 1  # reported now: the next try reads the disk
            return self._open_undamaged()
        except RaylogError as error:
            raise Violation("S9", f"an undamaged log does not open: {error}") from error

    def _done(self, call: Callable[[], object]) -> bool:
        """Make a call that may fail under current faults; False when it failed: the log is unchanged, or reopened."""
        faults = self.disk.faults
        try:
            call()
        except LogClosed as error:
            raise Violation("S10", f"a log that was not closed refuses: {error}") from error
        except RaylogError as error:
            full, broken = faults.room is not None, isinstance(error, StorageIoError | NotDurable)
            explained = (isinstance(error, DiskFull | NotDurable) and full) or (
                isinstance(error, DescriptorsExhausted | NotDurable) and faults.no_descriptors
            )
            require(explained or broken, "S10", f"{type(error).__name__} without a cause: {error}")
            self.note(f"  {type(error).__name__}: {error}")
            self._failed()
            return False
        return True

    def _failed(self) -> None:
        """After an error the log is unchanged, or reports that it must be reopened."""
        try:
            self.log.require_open()
        except LogClosed:
            room, self.disk.faults.room = self.disk.faults.room, None
            self.disk.faults.no_descriptors = False
            self._crash(power=self.draw.random() < 0.5)
            self.disk.faults.room = room
            return
        end = self.log.log_end_offset
        require(end == self.model.end, "S10", f"after an error the log ends at {end}, not at {self.model.end}")
        checks.check_epochs(self.log, self.model, end)
        self.model.epochs = list(self.log.epochs.entries)
        self.model.ghosts += self.model.tail
        self.model.settled()
