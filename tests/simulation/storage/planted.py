"""Planted bugs in storage, which the profile `storage` must notice: each replaces one function or method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raylog.actors.replica import set_aside
from raylog.base.epochs import EpochHistory
from raylog.base.errors import RaylogError
from raylog.storage import files, filesystem
from raylog.storage.batch import structure
from raylog.storage.errors import CorruptBatch, DescriptorsExhausted
from raylog.storage.log import checkpoints, recovery, retention, validation
from raylog.storage.log import partition_log as log
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.kept_epochs import KeptEpochs
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.recovery import Recovery
from raylog.storage.scrub import slices
from raylog.storage.scrub.log_scrub import LogScrub
from raylog.storage.scrub.plan import Passes, Place, Stretch, behind
from raylog.storage.segments.segment import Segment, SyncRound
from tests.simulation.planted.bugs import Planted

PROFILE = "storage"
Method = Callable[..., Any]
_ALL = 1 << 62


def _bug(name: str, rules: tuple[str, ...], target: Any, attribute: str, substitute: Any, seeds: int = 20) -> Planted:
    return Planted(name, PROFILE, seeds, rules, target, attribute, substitute)


def _nothing(*_: object, **__: object) -> None:
    """Does nothing, in place of a required step."""


def _none_kept(_: Path) -> int:
    return 0


def _only_the_active_segment(original: Method) -> Method:
    def begin(self: SyncRound, segments: Any, folder: Path | None) -> None:
        original(self, list(segments)[-1:], folder)

    return begin


def _without_folder(original: Method) -> Method:
    def begin(self: SyncRound, segments: Any, folder: Path | None) -> None:
        original(self, segments, None)

    return begin


def _not_durably(path: Path, data: bytes, *, durable: bool = True) -> None:
    files.write_atomically(path, data, durable=False)


def _recovery_point_first(original: Method) -> Method:
    def sync(self: PartitionLog) -> int:
        self.checkpoints.write_recovery_point(self.log_end_offset)
        end: int = original(self)
        return end

    return sync


def _at_the_end(self: PartitionLog, *, early: bool = False) -> None:
    if early:
        self._write_recovery_point(self.log_end_offset)


def _claims_what_came_since(original: Method) -> Method:
    def sync(self: PartitionLog) -> int:
        original(self)
        self.synced_end_offset = self.log_end_offset
        return self.synced_end_offset

    return sync


def _forgiven(original: Method) -> Method:
    def sync(self: PartitionLog) -> int:
        try:
            end: int = original(self)
            return end
        except RaylogError:
            self._closed_because = None
            raise

    return sync


def _counts_for_the_log_before(original: Method) -> Method:
    def truncate_to(self: PartitionLog, offset: int, now_ms: int) -> None:
        generation = self.generation
        original(self, offset, now_ms)
        self.generation = generation

    return truncate_to


def _forgets_the_folder(original: Method) -> Method:
    def sync(self: PartitionLog) -> int:
        try:
            end: int = original(self)
            return end
        except DescriptorsExhausted:
            self._folder_dirty = False
            raise

    return sync


def _never_lowered(original: Method) -> Method:
    def write(self: PartitionLog, offset: int) -> None:
        if offset:
            original(self, offset)

    return write


def _one_batch_too_many(original: Method) -> Method:
    def take(self: Recovery, segment: Segment, data: bytes, position: int, header: Any) -> None:
        if segment is self.segments[-1] and segment.size and segment.size + header.size == segment.file_size():
            raise CorruptBatch("it is the last")
        original(self, segment, data, position, header)

    return take


def _replay_one_too_few(original: Method) -> Method:
    def replay(segments: list[Segment], producers: Any, start: int, now_ms: int) -> None:
        original(segments, producers, start + 1, now_ms)

    return replay


def _snapshot_of_the_future(original: Method) -> Method:
    def read(self: Checkpoints, start: int, upto: int) -> Any:
        return original(self, start, _ALL)

    return read


def _known_first(self: KeptEpochs, changed: EpochHistory) -> None:
    self.history.entries = changed.entries
    self._checkpoints.write_epochs(changed)


def _unbounded(original: Method) -> Method:
    def read(self: KeptWatermark, folder: Path, log_end_offset: int) -> None:
        original(self, folder, _ALL)

    return read


def _lowered_in_memory(self: KeptWatermark, to: int) -> None:
    self.offset = min(self.offset, to)


def _above_the_watermark(original: Method) -> Method:
    def removable(segments: Any, config: Any, now_ms: int, high_watermark: int, log_start: int) -> int:
        found: int = original(segments, config, now_ms, _ALL, log_start)
        return min(found, len(segments) - 1)

    return removable


def _cut_taken_for_synced(original: Method) -> Method:
    def write(self: Segment, data: bytes) -> int:
        try:
            written: int = original(self, data)
            return written
        finally:
            self.cut_unsynced = False

    return write


def _any_index(original: Method) -> Method:
    def resume(self: Segment, below: int) -> None:
        """Trust the index, and all its entries, without checking."""
        original(self, _ALL)

    return resume


def _always_clean(self: Recovery) -> bool:
    """Open by the tails of the segments, as after a clean close."""
    self._load_finished(len(self.segments))
    self.recovery_point = self._end
    self._load_producers(self._end, len(self.segments))
    self.segments[-1].unseal()
    self.report.clean = True
    return True


def _new_name_unsynced(folder: Path) -> None:
    if not folder.name.startswith("."):
        files.sync_folder(folder)


def _leaping(original: Method) -> Method:
    def next_place(self: Passes, log: list[Stretch]) -> Place | None:
        place: Place | None = original(self, log)
        if place is None or not [stretch.base for stretch in log].index(place.base) % 2:
            return place
        return next_place(self.read_to(behind(place, log)), log)

    return next_place


class _WithoutTruncation(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        return _nothing if name == "ftruncate" else getattr(filesystem, name)


STORAGE_BUGS = (
    _bug("a sync is skipped", ("S1", "S9"), SyncRound, "run", SyncRound._end),
    _bug(
        "a sync covers the active segment alone",
        ("S1", "S9"),
        SyncRound,
        "__init__",
        _only_the_active_segment(SyncRound.__init__),
    ),
    _bug(
        "a sync leaves the folder out after a roll",
        ("S1", "S9"),
        SyncRound,
        "__init__",
        _without_folder(SyncRound.__init__),
        120,
    ),
    _bug(
        "the folder is not synced after a rename", ("S1", "S3", "S4", "S7", "S9", "S11"), files, "sync_folder", _nothing
    ),
    _bug(
        "checkpoints are renamed before they are synced",
        ("S3", "S4", "S9", "S11"),
        checkpoints,
        "write_atomically",
        _not_durably,
    ),
    _bug(
        "the recovery point is written before the data",
        ("S9",),
        PartitionLog,
        "sync",
        _recovery_point_first(PartitionLog.sync),
        60,
    ),
    _bug("an early recovery point is that of all records", ("S9",), PartitionLog, "checkpoint", _at_the_end, 60),
    _bug(
        "a sync reports what was appended while it ran",
        ("S1", "S9"),
        PartitionLog,
        "sync",
        _claims_what_came_since(PartitionLog.sync),
    ),
    _bug("a log goes on after a failed sync", ("S1", "S9"), PartitionLog, "sync", _forgiven(PartitionLog.sync), 400),
    _bug(
        "a sync counts for a log that was cut meanwhile",
        ("S1", "S9", "S10"),
        PartitionLog,
        "truncate_to",
        _counts_for_the_log_before(PartitionLog.truncate_to),
        60,
    ),
    _bug(
        "a sync that lacked a descriptor leaves the folder out",
        ("S1", "S9"),
        PartitionLog,
        "sync",
        _forgets_the_folder(PartitionLog.sync),
        200,
    ),
    _bug(
        "a restart of the log keeps its recovery point",
        ("S8", "S9"),
        PartitionLog,
        "_write_recovery_point",
        _never_lowered(PartitionLog._write_recovery_point),
        200,
    ),
    _bug("recovery believes the page cache", ("S1", "S2", "S9"), Segment, "drop_cached", _nothing, 60),
    _bug("recovery checks no CRC", ("S2", "S6", "S8", "S9"), recovery, "check_crc", _nothing),
    _bug("recovery cuts one batch too many", ("S1", "S9"), Recovery, "_take", _one_batch_too_many(Recovery._take)),
    _bug(
        "recovery leaves the torn end in the file",
        ("S1", "S2", "S6", "S9", "S10"),
        recovery,
        "filesystem",
        _WithoutTruncation(),
    ),
    _bug(
        "recovery forgets the producers of a batch",
        ("S5",),
        recovery,
        "replay",
        _replay_one_too_few(recovery.replay),
        60,
    ),
    _bug("recovery knows no recovery point", ("S8",), Checkpoints, "read_recovery_point", lambda self: 0, 80),
    _bug("compressed bodies are stored unopened", ("S13",), validation, "open_to_check", lambda *_: 0, 40),
    _bug("a body may have other records than its header says", ("S13",), structure, "check_opened", _nothing, 40),
    _bug("a scrub checks no CRC", ("S16",), slices, "_check_crc", _nothing, 60),
    _bug("a scrub looks at no epoch", ("S16",), slices, "check_epoch", _nothing, 200),
    _bug("a scrub reads every other segment", ("S16",), Passes, "next_place", _leaping(Passes.next_place), 60),
    _bug("what a scrub has found is confirmed never", ("S16",), LogScrub, "confirm_damage", _nothing, 60),
    _bug("every log counts as closed cleanly", ("S1", "S2", "S5", "S9"), Recovery, "_open_clean", _always_clean),
    _bug(
        "an index is believed beyond what was synced",
        ("S1", "S2", "S5", "S9"),
        Segment,
        "resume",
        _any_index(Segment.resume),
        60,
    ),
    _bug("a cut is not synced", ("S1", "S2", "S9"), Segment, "sync", _nothing),
    _bug(
        "the cut of a failed append counts as synced",
        ("S9", "S2"),
        Segment,
        "write",
        _cut_taken_for_synced(Segment.write),
        400,
    ),
    _bug("leader epochs are not written", ("S4", "S9"), Checkpoints, "write_epochs", _nothing),
    _bug(
        "an epoch is known before its file has it",
        ("S1", "S2", "S4", "S8", "S9"),
        KeptEpochs,
        "_keep",
        _known_first,
        40,
    ),
    _bug(
        "a producer snapshot of the future is read",
        ("S5",),
        Checkpoints,
        "read_snapshot",
        _snapshot_of_the_future(Checkpoints.read_snapshot),
    ),
    _bug("snapshots above a cut stay", ("S5",), Checkpoints, "remove_snapshots_above", _nothing, 40),
    _bug(
        "a kept watermark is not bounded by the log",
        ("S7",),
        KeptWatermark,
        "__init__",
        _unbounded(KeptWatermark.__init__),
        120,
    ),
    _bug("what is committed passes for a torn end", ("S8",), recovery, "kept_watermark", _none_kept, 60),
    _bug("a kept watermark falls in memory alone", ("S7",), KeptWatermark, "lower", _lowered_in_memory),
    _bug(
        "retention goes above the high watermark", ("S3",), log, "removable", _above_the_watermark(retention.removable)
    ),
    _bug("a deletion of records is not written", ("S3",), Checkpoints, "write_log_start", _nothing),
    _bug("a removed folder is moved without a sync", ("S11",), set_aside, "sync_folder", _nothing),
    _bug("a folder loses its old name first", ("S11",), set_aside, "sync_folder", _new_name_unsynced, 200),
)
