"""A virtual disk: folders and files with the semantics of a crash, and the faults of real disks.

Unsynced data may be lost, in any order and in the middle of a write. A name that was created, changed or removed may
come back until its folder is synced. A failed sync drops the data it should have written. `VirtualFileSystem` puts
disks below `raylog.storage`. All randomness comes from the disk's seed.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import PurePath

from tests.simulation.storage.nodes import File, Folder, Node, Rename

Image = dict[str, "bytes | Image"]
"""The content of a disk without any cache: folders by name, files as bytes."""


class PowerLost(BaseException):
    """The disk is lost to the calling process: the machine went down, or the process was killed."""


class Faults:
    """Current faults. Rates are shares of calls; all are zero at first."""

    def __init__(self) -> None:
        """Begin with a healthy disk."""
        self.failing_syncs = 0
        """This many syncs of files fail from now on, and drop the data they should have written."""
        self.failing_writes = 0
        """This many writes fail from now on, after part of the bytes."""
        self.failing_cuts = 0
        """This many changes of a file's size fail from now on."""
        self.read_errors = 0.0
        self.no_descriptors = False
        self.room: int | None = None
        """Free bytes; None = unlimited."""
        self.fuse: int | None = None
        """The power fails at this mutating call, counted from now."""
        self.pace: Callable[[str], None] | None = None
        """Called before each sync with the name of the call: a slow disk waits here, a hanging one permanently."""


class VirtualDisk:
    """One disk. Paths are relative to its root."""

    def __init__(self, seed: int, *, sector: int = 512, image: Image | None = None) -> None:
        """Make an empty disk, or one with an image's content. `sector` bytes are written together or not at all."""
        self.draw = random.Random(seed)
        self.sector = sector
        self.faults = Faults()
        self.device = 0
        """The number by which `stat` distinguishes it from other disks."""
        self.dead = False
        self.lives = 0
        """How often all descriptors became invalid."""
        self.changes = 0
        """Number of mutating calls."""
        self._numbers = 0
        self._renames: list[Rename] = []
        self.root = self._folder_of({} if image is None else image)

    # --- images ----------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _folder_of(self, image: Image) -> Folder:
        folder = Folder(self._number(), 0o40700)
        for name, content in image.items():
            node = File(self._number(), 0o100600, content) if isinstance(content, bytes) else self._folder_of(content)
            folder.entries[name] = folder.disk[name] = node
        return folder

    def image(self) -> Image:
        """The contents of the disk; after `lose_power`, all that survives."""
        return _image_of(self.root)

    # --- crashes ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End every process: descriptors are closed, and the cache stays."""
        self.lives += 1
        self.dead = False
        self.faults.fuse = None

    def lose_power(self) -> None:
        """End every process and drop the cache: only data on the disk is left."""
        self.kill()
        for rename in self._renames[: self.draw.randint(0, len(self._renames))]:  # in order, as a journal keeps them
            rename.apply_to_disk()
        self._renames.clear()
        self._settle(self.root)

    def _settle(self, folder: Folder) -> None:
        folder.entries = dict(folder.disk)
        for node in folder.entries.values():
            if isinstance(node, Folder):
                self._settle(node)
            else:
                node.lose_power(self.draw, self.sector)
                node.names = 1

    def _changing(self, effect: Callable[[], None] | None = None) -> None:
        """Count a mutating call; at the fuse the power fails before it or, with `effect`, after it."""
        self.require()
        self.changes += 1
        fuse = self.faults.fuse
        if fuse is not None:
            self.faults.fuse = fuse - 1
            if fuse <= 0:
                if effect is not None and self.draw.random() < 0.5:
                    effect()
                self.dead = True
                raise PowerLost
        if effect is not None:
            effect()

    def require(self) -> None:
        """Raise PowerLost when the disk is lost."""
        if self.dead:
            raise PowerLost

    # --- names -----------------------------------------------------------------------------------------------------

    def find(self, path: PurePath) -> Node:
        """The node of this name. Raises FileNotFoundError, NotADirectoryError."""
        node: Node = self.root
        for part in path.parts:
            if not isinstance(node, Folder):
                raise failure(errno.ENOTDIR, path)
            found = node.entries.get(part)
            if found is None:
                raise failure(errno.ENOENT, path)
            node = found
        return node

    def _folder(self, path: PurePath) -> Folder:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, path)
        return node

    def _rename(self, *edits: tuple[Folder, str, Node | None]) -> None:
        def effect() -> None:
            for folder, name, node in edits:
                before = folder.entries.pop(name, None)
                if isinstance(before, File):
                    before.names -= 1
                    self._release(before)
                if node is not None:
                    folder.entries[name] = node
                if isinstance(node, File):
                    node.names += 1
            folders = {id(folder) for folder, _, _ in edits}
            self._renames += [Rename(edits)] if len(folders) == 1 else [Rename((edit,)) for edit in edits]

        self._changing(effect)

    def open(self, path: PurePath, flags: int, mode: int) -> Node:
        """As `os.open`, without the descriptor."""
        self.require()
        if self.faults.no_descriptors:
            raise failure(errno.EMFILE, path)
        try:
            node = self.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            if self.faults.room == 0 and self.draw.random() < 0.5:
                raise failure(errno.ENOSPC, path) from None
            node = File(self._number(), 0o100000 | mode)
            node.names = 0
            self._rename((self._folder(path.parent), path.name, node))
        if flags & os.O_DIRECTORY and not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, path)
        if isinstance(node, File):
            if flags & os.O_TRUNC and node.content:
                self.resize(node, 0)
            node.holders += 1
        elif flags & (os.O_WRONLY | os.O_RDWR):
            raise failure(errno.EISDIR, path)
        return node

    def close(self, node: Node) -> None:
        """A descriptor of the node is closed."""
        if isinstance(node, File):
            node.holders -= 1
            self._release(node)

    def _release(self, file: File) -> None:
        if self.faults.room is not None and not file.names and not file.holders:
            self.faults.room += len(file.content)

    def mkdir(self, path: PurePath, mode: int) -> None:
        """As `os.mkdir`."""
        self.require()
        parent = self._folder(path.parent)
        if not path.name or path.name in parent.entries:
            raise failure(errno.EEXIST, path)
        self._rename((parent, path.name, Folder(self._number(), 0o40000 | mode)))

    def replace(self, source: PurePath, target: PurePath) -> None:
        """As `os.replace`. Between two folders each name is durable with its own folder, the new one never later."""
        self.require()
        node, into = self.find(source), self._folder(target.parent)
        present = into.entries.get(target.name)
        if isinstance(present, Folder) and present.entries:
            raise failure(errno.ENOTEMPTY, target)
        self._rename((into, target.name, node), (self._folder(source.parent), source.name, None))

    def unlink(self, path: PurePath) -> None:
        """As `os.unlink`."""
        self.require()
        if isinstance(self.find(path), Folder):
            raise failure(errno.EISDIR, path)
        self._rename((self._folder(path.parent), path.name, None))

    def rmdir(self, path: PurePath) -> None:
        """As `os.rmdir`."""
        self.require()
        if self._folder(path).entries:
            raise failure(errno.ENOTEMPTY, path)
        self._rename((self._folder(path.parent), path.name, None))

    def listdir(self, path: PurePath) -> list[str]:
        """As `os.listdir`, in an arbitrary order."""
        self.require()
        names = list(self._folder(path).entries)
        self.draw.shuffle(names)
        return names

    # --- bytes -----------------------------------------------------------------------------------------------------

    def read(self, file: File, size: int, position: int) -> bytes:
        """As `os.pread`; sometimes fewer bytes than there are."""
        self.require()
        if self.faults.read_errors and self.draw.random() < self.faults.read_errors:
            raise failure(errno.EIO)
        data = bytes(file.content[position : position + size])
        return data[: self.draw.randint(1, len(data))] if len(data) > 1 and self.draw.random() < 0.02 else data

    def write(self, file: File, data: bytes, position: int) -> int:
        """As `os.pwrite`: all bytes, or as many as fit."""
        taken = len(data)
        if self.faults.room is not None:
            growth = max(0, position + len(data) - len(file.content))
            if growth > self.faults.room:
                taken = len(data) - growth + self.faults.room
        if self.faults.failing_writes:
            taken = self.draw.randint(0, taken)
        if self.faults.fuse == 0:
            taken = self.draw.randint(0, taken)
        before = len(file.content)
        if taken > 0:
            self._changing(lambda: file.write(position, data[:taken]))
            if self.faults.room is not None:
                self.faults.room -= len(file.content) - before
        else:
            self._changing()
        if self.faults.failing_writes and taken < len(data):
            self.faults.failing_writes -= 1
            raise failure(errno.EIO)
        if taken <= 0 and data:
            raise failure(errno.ENOSPC)
        return taken

    def resize(self, file: File, size: int) -> None:
        """As `os.ftruncate`."""
        before = len(file.content)
        if self.faults.failing_cuts:
            self.faults.failing_cuts -= 1
            raise failure(errno.EIO)
        self._changing(lambda: file.resize(size))
        if self.faults.room is not None:
            self.faults.room += before - len(file.content)

    def sync(self, node: Node, call: str = "fsync") -> None:
        """As `os.fsync` or `os.fdatasync`, of a file or a folder."""
        self.require()
        if self.faults.pace is not None:
            self.faults.pace(call)
            self.require()
        if isinstance(node, Folder):
            self._changing(lambda: self._sync_names(node))
            return
        if self.faults.failing_syncs or node.unreported:
            self.faults.failing_syncs = max(0, self.faults.failing_syncs - (not node.unreported))
            if not node.unreported:
                self._changing(lambda: node.fail_sync(self.draw, self.sector))
            node.unreported = False
            raise failure(errno.EIO)
        self._changing(node.sync)

    def fail_write_back(self, node: File) -> None:
        """The kernel writes a file back in the background and fails; the next sync of it reports the error."""
        node.fail_sync(self.draw, self.sector)
        node.unreported = True

    def _sync_names(self, folder: Folder) -> None:
        """Make the changes of a folder's names durable, with the changes they depend on."""
        needed: set[tuple[int, str]] = set()
        durable = []
        for rename in reversed(self._renames):
            if any(changed is folder for changed, _, _ in rename.edits) or not needed.isdisjoint(rename.places):
                needed |= rename.places
                durable.append(rename)
        for rename in reversed(durable):
            rename.apply_to_disk()
        self._renames = [rename for rename in self._renames if rename not in durable]

    def advise(self, node: Node, position: int, length: int, advice: int) -> None:
        """As `os.posix_fadvise`: DONTNEED drops clean pages."""
        self.require()
        if isinstance(node, File) and advice == os.POSIX_FADV_DONTNEED:
            node.drop_clean(position, len(node.content) if length == 0 else position + length)

    def files(self) -> Iterator[tuple[PurePath, File]]:
        """Every file and its path."""
        yield from _files_below(self.root, PurePath())


def _image_of(folder: Folder) -> Image:
    return {
        name: bytes(node.disk) if isinstance(node, File) else _image_of(node)
        for name, node in sorted(folder.disk.items())
    }


def _files_below(folder: Folder, path: PurePath) -> Iterator[tuple[PurePath, File]]:
    for name, node in sorted(folder.entries.items()):
        if isinstance(node, File):
            yield path / name, node
        else:
            yield from _files_below(node, path / name)


def failure(number: int, path: PurePath | None = None) -> OSError:
    """The error that the kernel would return."""
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
