"""Selects old segments for removal, and removes their files after a delay.

Called by `PartitionLog`. Retention removes whole segments from the start of the log; a removed file first gets the
suffix `.deleted` and is unlinked after file.delete.delay.ms, so that readers on the same machine can finish.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.errors import from_os_error
from raylog.storage.log.config import LogConfig
from raylog.storage.log.files import list_files, remove, sync_folder
from raylog.storage.log.segment import DELETED, TXN_INDEX, Segment


def removable(segments: list[Segment], config: LogConfig, now_ms: int, high_watermark: int, log_start: int) -> int:
    """How many segments from the start may be removed; all of them only if the active one holds records.

    A segment that ends at or below the high watermark is removed for one of three reasons: it lies below the log start;
    its youngest record is older than retention.ms; or the log without it still holds retention.bytes. The age of a
    segment without a record that has a time, of markers alone, counts from `created_ms`.
    """
    left = sum(segment.size for segment in segments)
    count = 0
    for segment in segments:
        last = segment is segments[-1]
        if segment.next_offset > high_watermark or (last and segment.size == 0):
            break
        deleted = segment.next_offset <= log_start
        aged = config.deletes and config.retention_ms >= 0 and now_ms - _youngest_ms(segment) > config.retention_ms
        surplus = config.deletes and config.retention_bytes >= 0 and left - segment.size >= config.retention_bytes
        if not (deleted or aged or surplus) or (last and not aged):
            break
        left -= segment.size
        count += 1
    return count


def _youngest_ms(segment: Segment) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms


class DeletedFiles:
    """Renamed files, and the time (wall clock, milliseconds) from which each may be unlinked."""

    def __init__(self, folder: Path, due_ms: int) -> None:
        self._due: dict[Path, int] = dict.fromkeys(list_files(folder, DELETED), due_ms)

    def add(self, segment: Segment, due_ms: int) -> None:
        """Close the segment and rename its files. After a crash a rename may be undone, which is harmless.

        The indexes first: after an error the segment still exists, and rebuilds them. That of aborted transactions
        last, once no crash brings the segment back; one that stays is removed by the next recovery. Raises
        StorageIoError.
        """
        segment.release()
        path, *indexes = segment.files()[:3]
        for each in (*reversed(indexes), path):
            self._rename(each, due_ms)
        if segment.has_aborted:
            with suppress(RaylogError):
                sync_folder(path.parent)
                self._rename(segment.sibling(TXN_INDEX), due_ms)

    def _rename(self, path: Path, due_ms: int) -> None:
        renamed = path.with_name(path.name + DELETED)
        try:
            filesystem.replace(path, renamed)
        except FileNotFoundError:
            return  # an index that was never written
        except OSError as error:
            raise from_os_error(f"rename {path}", error) from error
        self._due[renamed] = due_ms

    def purge(self, now_ms: int) -> int:
        """Unlink files that are due; returns their number."""
        due = [path for path, moment in self._due.items() if moment <= now_ms]
        for path in due:
            remove(path)
            del self._due[path]
        return len(due)
