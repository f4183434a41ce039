"""The small files beside the segments of a partition: writing and reading them.

`partition.metadata` (topic id, log id), `leader-epoch-checkpoint`, `recovery-point-checkpoint` (synced below it),
`log-start-offset-checkpoint`, `cleaner-offset-checkpoint`, `clean-shutdown` (the log was closed and needs no scan),
`end-cut` (recovery has cut off the end, which is not reported yet), `<offset>.snapshot` (producer state). Used by the
log and its recovery. All are replaced atomically; a missing one has a safe meaning.

Identity, numbers and epochs have a checksum in the last line, without which a flipped bit would be another number.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import google_crc32c

from raylog.base.epochs import EpochHistory
from raylog.base.errors import RaylogError
from raylog.storage.errors import CorruptBatch, LogDamaged, WrongTopicId, from_os_error
from raylog.storage.files import exists, list_files, read_bytes, read_text, remove, sync_folder, write_atomically
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments.segment import LOG, SNAPSHOT, offset_name, snapshot_offsets

METADATA = "partition.metadata"
EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINT = "recovery-point-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANED_TO = "cleaner-offset-checkpoint"
TOMBSTONES_DUE = "cleaner-tombstones-checkpoint"
CLEAN = "clean-shutdown"
END_CUT = "end-cut"
SNAPSHOTS_KEPT = 3

_NUMBER: Final = re.compile(r"0\n([0-9]{1,19})\n")
_MARK: Final = "crc: "


class CleanMark(NamedTuple):
    """Contents of the clean-shutdown file: the log's end, and the base and size of its last segment."""

    log_end_offset: int
    last_base_offset: int
    last_size: int


def _with_crc(text: str) -> str:
    return f"{text}{_MARK}{google_crc32c.value(text.encode()):08x}\n"


def _checked(text: str) -> str | None:
    """The text without its checksum; None where that is missing or wrong."""
    body = text.rpartition(_MARK)[0]
    return body if text == _with_crc(body) else None


def _fields(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


class Checkpoints:
    """The small files of one partition folder."""

    __slots__ = ("_identity", "folder")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = ""
        """The text of `partition.metadata`, once it was claimed."""

    # --- identity --------------------------------------------------------------------------------------------------

    def claim(self, topic_id: str, topic: str, partition: int) -> bool:
        """Check that the folder belongs to this topic id, and record that in a new one; True when it is new."""
        path = self.folder / METADATA
        text = read_text(path)
        if text is None:
            if list_files(self.folder, LOG):
                raise LogDamaged(path, 0, 0, "there are segments, but the file with their topic id is missing")
            lines = (
                "version: 0",
                f"topic_id: {topic_id}",
                f"topic: {topic}",
                f"partition: {partition}",
                f"log_id: {uuid4().hex}",
            )
            self._identity = _with_crc("\n".join(lines) + "\n")
            write_atomically(path, self._identity.encode())
            return True
        if _checked(text) is None:
            raise LogDamaged(path, 0, 0, "the checksum of the file with the topic id is missing or wrong")
        found = _fields(text).get("topic_id", "")
        if found != topic_id:
            raise WrongTopicId(self.folder, found, topic_id)
        self._identity = text
        return False

    def write_identity(self) -> None:
        """Write again what was claimed. Durable on return."""
        write_atomically(self.folder / METADATA, self._identity.encode())

    def damaged(self) -> list[str]:
        """The names of the damaged files among those that the log can do without. Raises StorageIoError.

        A file may be replaced meanwhile: it is whole before and after.
        """
        numbers = [name for name in (RECOVERY_POINT, LOG_START) if self._read_number(name) is None]
        identity, epochs = read_text(self.folder / METADATA), read_text(self.folder / EPOCHS)
        names = [METADATA] if identity is None or _checked(identity) is None else []
        names += [EPOCHS] if epochs is not None and self.read_epochs() is None else []
        return [*names, *numbers, *self._damaged_snapshots()]

    def _damaged_snapshots(self) -> list[str]:
        names = []
        for offset in snapshot_offsets(self.folder):
            name = offset_name(offset, SNAPSHOT)
            try:
                ProducerState.from_bytes(read_bytes(self.folder / name))
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                raise from_os_error(f"read {self.folder / name}", error) from error
            except CorruptBatch:
                names.append(name)
        return names

    def read_log_id(self) -> str:
        """The identity that the log was given when its folder was made."""
        return _fields(read_text(self.folder / METADATA) or "").get("log_id", "")

    # --- numbers ---------------------------------------------------------------------------------------------------

    def _read_number(self, name: str) -> int | None:
        """The number in a file; 0 if there is no file, None if it is damaged."""
        text = read_text(self.folder / name)
        if text is None:
            return 0
        found = _NUMBER.fullmatch(_checked(text) or "")
        return None if found is None else int(found[1])

    def _write_number(self, name: str, number: int) -> None:
        write_atomically(self.folder / name, _with_crc(f"0\n{number}\n").encode())

    def read_recovery_point(self) -> int | None:
        """The offset below which everything was synced when it was written; 0 if there is none, None if damaged."""
        return self._read_number(RECOVERY_POINT)

    def write_recovery_point(self, offset: int) -> None:
        """Durable on return."""
        self._write_number(RECOVERY_POINT, offset)

    def read_log_start(self) -> int:
        """The log start offset set by delete_records; 0 if it never was. Raises LogDamaged."""
        found = self._read_number(LOG_START)
        if found is None:
            raise LogDamaged(self.folder / LOG_START, 0, 0, "the checkpoint is not readable")
        return found

    def write_log_start(self, offset: int) -> None:
        """Durable on return."""
        self._write_number(LOG_START, offset)

    def read_cleaned_to(self) -> int:
        """The offset where the last cleaning ended; 0 if there was none, or the file is damaged."""
        return self._read_number(CLEANED_TO) or 0

    def write_cleaned_to(self, offset: int) -> None:
        """Durable on return."""
        self._write_number(CLEANED_TO, offset)

    def read_tombstones_due(self) -> int:
        """When the first tombstone that the last cleaning left may be removed, in ms since 1970; 0 = it left none.

        1 if the file is damaged, so that the next cleaning is due at once.
        """
        found = self._read_number(TOMBSTONES_DUE)
        return 1 if found is None else found

    def write_tombstones_due(self, moment_ms: int) -> None:
        """Durable on return."""
        if moment_ms or exists(self.folder / TOMBSTONES_DUE):
            self._write_number(TOMBSTONES_DUE, moment_ms)

    # --- leader epochs ---------------------------------------------------------------------------------------------

    def read_epochs(self) -> EpochHistory | None:
        """The history; None where the file is missing or unreadable, and has to be rebuilt from the batches."""
        text = read_text(self.folder / EPOCHS)
        if text is None:
            return None
        try:
            return _parse_epochs(text)
        except ValueError:
            return None

    def write_epochs(self, epochs: EpochHistory) -> None:
        """Durable on return."""
        write_atomically(self.folder / EPOCHS, _epochs_text(epochs).encode())

    # --- clean shutdown --------------------------------------------------------------------------------------------

    def read_clean(self) -> CleanMark | None:
        """The last clean close, or None after a crash."""
        text = read_text(self.folder / CLEAN)
        try:
            return CleanMark(*map(int, text.split())) if text is not None else None
        except (TypeError, ValueError):
            return None  # a scan is always allowed

    def write_clean(self, mark: CleanMark) -> None:
        """Durable on return."""
        write_atomically(self.folder / CLEAN, " ".join(map(str, mark)).encode())

    def remove_clean(self) -> None:
        """Durable on return; must come before the first append."""
        if exists(self.folder / CLEAN):
            remove(self.folder / CLEAN)
            sync_folder(self.folder)

    def has_end_cut(self) -> bool:
        """Whether recovery has cut off the log's end, and no incarnation of the replica has reported it yet.

        Raises StorageIoError.
        """
        return exists(self.folder / END_CUT)

    def write_end_cut(self, reason: str) -> None:
        """Durable on return; must come before the cut. Raises StorageIoError, DiskFull."""
        write_atomically(self.folder / END_CUT, f"{reason}\n".encode())

    def remove_end_cut(self) -> None:
        """The cut is reported. One that comes back after a loss of power is reported once more."""
        remove(self.folder / END_CUT)

    # --- producer snapshots ----------------------------------------------------------------------------------------

    def write_snapshot(self, offset: int, producers: ProducerState, *, durable: bool) -> None:
        """Keep the producer state as of `offset`, and prune snapshots beyond the newest few."""
        write_atomically(self.folder / offset_name(offset, SNAPSHOT), producers.to_bytes(), durable=durable)
        for old in snapshot_offsets(self.folder)[:-SNAPSHOTS_KEPT]:
            remove(self.folder / offset_name(old, SNAPSHOT))

    def read_snapshot(self, start: int, upto: int) -> tuple[int, ProducerState]:
        """The newest readable snapshot between `start` and `upto`, as (offset, state).

        Without one, (start, an empty state).
        """
        for offset in reversed(snapshot_offsets(self.folder)):
            if start <= offset <= upto:
                try:
                    data = read_bytes(self.folder / offset_name(offset, SNAPSHOT))
                    return offset, ProducerState.from_bytes(data)
                except (OSError, CorruptBatch):
                    continue  # an older one, or the log itself, has the same state
        return start, ProducerState()

    def remove_snapshots_above(self, offset: int) -> None:
        """Remove the snapshots above `offset`, to which the log is truncated."""
        for found in snapshot_offsets(self.folder):
            if found > offset:
                remove(self.folder / offset_name(found, SNAPSHOT))

    def try_write_snapshot(self, offset: int, producers: ProducerState) -> None:
        """As `write_snapshot`; a failure is ignored and only makes a later recovery slower."""
        try:
            self.write_snapshot(offset, producers, durable=False)
        except RaylogError:
            remove(self.folder / offset_name(offset, SNAPSHOT))


def _epochs_text(epochs: EpochHistory) -> str:
    """Version, count, and one `epoch start` line each, as Kafka writes them; then the checksum."""
    entries = "".join(f"{epoch} {start}\n" for epoch, start in epochs.entries)
    return _with_crc(f"0\n{len(epochs.entries)}\n{entries}")


def _parse_epochs(text: str) -> EpochHistory:
    """Read what `_epochs_text` gives; ValueError when it is cut off or damaged."""
    version, count, *lines = (_checked(text) or "").splitlines()
    if version != "0" or not count.isdigit() or len(lines) != int(count):
        raise ValueError("The leader epoch checkpoint is damaged, or of an unknown version.")
    pairs = (line.split(" ") for line in lines)
    return EpochHistory((int(epoch), int(start)) for epoch, start in pairs)
