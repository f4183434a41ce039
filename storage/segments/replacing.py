"""Removes the files of a segment after a delay, and puts a cleaned segment in the place of those that it replaces.

A removed file first gets the suffix `.deleted` and is unlinked after file.delete.delay.ms, so that readers on the same
machine can finish. A replacement loses nothing by a crash at any step. In order: the whole new segment is on disk as
`.log.cleaned`; it is renamed to `.log.swap`, which is the decision; the replaced files are renamed to `.deleted`; the
new one gets its name. Each step is on disk before the next one. A recovery removes `.cleaned` files, and finishes what
a `.swap` file has decided. Called by the log and its recovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.errors import from_os_error
from raylog.storage.files import exists, list_files, remove, sync_folder
from raylog.storage.segments.segment import DELETED, LOG, TXN_INDEX, Segment, offset_name

CLEANED: Final = ".cleaned"
"""Suffix of a segment's file while a cleaning writes it; recovery removes such files."""
SWAP: Final = ".swap"


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


def swap_in(new: Segment, old: Sequence[Segment], deleted: DeletedFiles, due_ms: int) -> None:
    """Replace `old` by `new`, which begins where the first of them does. Durable on return.

    Raises StorageIoError, DiskFull, DescriptorsExhausted: the folder then has to be recovered.
    """
    folder = new.path.parent
    swap = folder / offset_name(new.base_offset, LOG + SWAP)
    _rename(new.path, swap)
    sync_folder(folder)
    for segment in old:
        deleted.add(segment, due_ms)
    if old[0].has_aborted:  # an old list must not name transactions whose markers are not in the new segment
        remove(old[0].sibling(TXN_INDEX))
    sync_folder(folder)
    new.path = folder / offset_name(new.base_offset, LOG)
    _rename(swap, new.path)
    sync_folder(folder)
    new.seal()


def finish_swaps(folder: Path, index_interval: int) -> None:
    """Remove what a cleaning has left unfinished, and finish the swap that it had decided on.

    Raises LogDamaged, StorageIoError, DiskFull.
    """
    for path in list_files(folder, CLEANED):
        remove(path)
    for path in list_files(folder, LOG + SWAP):
        base_offset = int(path.name.split(".")[0])
        new = Segment(path, base_offset, index_interval=index_interval, created_ms=0)
        try:
            new.size = new.file_size()
            for _, header in new.walk(0):
                new.next_offset = header.next_offset
        finally:
            new.release()
        for other in list_files(folder, LOG):
            if other.stem.isdigit() and base_offset <= int(other.stem) < new.next_offset:
                Segment(other, int(other.stem), index_interval=index_interval, created_ms=0).remove_files()
        Segment(folder / offset_name(base_offset, LOG), base_offset, index_interval=1, created_ms=0).remove_files()
        if exists(folder / offset_name(base_offset, TXN_INDEX)):
            remove(folder / offset_name(base_offset, TXN_INDEX))
        sync_folder(folder)
        _rename(path, folder / offset_name(base_offset, LOG))
        sync_folder(folder)


def _rename(path: Path, to: Path) -> None:
    try:
        filesystem.replace(path, to)
    except OSError as error:
        raise from_os_error(f"rename {path}", error) from error
