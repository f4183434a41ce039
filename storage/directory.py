"""A broker's data directory: its owner, and the lock of the process that has it open.

Opened by the broker actor before any partition in it. `meta.properties` names the cluster and broker of the data (names
and meaning as Kafka's); the lock `.lock` is held while the directory is open, so that a second process is refused with
the name of the first.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from raylog.base.errors import DataDirectoryError, InvalidTopic
from raylog.storage.errors import WrongDirectory
from raylog.storage.files import is_folder, list_files, private_folder, read_text, sync_folder, write_atomically
from raylog.storage.folder_lock import FolderLock, parse_properties

META = "meta.properties"
LOCK = ".lock"
VERSION = "1"
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
PARTITION_MAX = 2**31 - 1


def check_topic_name(topic: str) -> None:
    """Raise InvalidTopic unless `topic` is a valid topic name, by Kafka's rule."""
    if topic in (".", "..") or not TOPIC_NAME.fullmatch(topic):
        raise InvalidTopic(
            f"Topic name {topic!r} is invalid. Use 1 to 249 letters, digits, dots, underscores and hyphens, "
            "and neither '.' nor '..'."
        )


def partition_folder(root: Path, topic: str, partition: int) -> Path:
    """The folder of one partition, `<topic>-<partition>`. InvalidTopic."""
    check_topic_name(topic)
    if partition < 0:
        raise ValueError(f"Partition {partition} must not be negative.")
    return root / f"{topic}-{partition}"


def parse_partition_folder(name: str) -> tuple[str, int] | None:
    """The (topic, partition) of a folder name, or None if it is no partition's."""
    topic, _, number = name.rpartition("-")
    if not TOPIC_NAME.fullmatch(topic) or topic in (".", "..") or not PARTITION_NUMBER.fullmatch(number):
        return None
    return (topic, int(number)) if int(number) <= PARTITION_MAX else None


class DataDirectory:
    """An open, locked data directory; a context manager that closes itself."""

    def __init__(self, path: Path, lock: FolderLock, properties: dict[str, str]) -> None:
        self.path = path
        self._lock = lock
        self._properties = properties

    @property
    def cluster_id(self) -> str:
        """The cluster the data belongs to."""
        return self._properties["cluster.id"]

    @property
    def broker_id(self) -> int | None:
        """The broker the data belongs to; None in a new directory that was opened without one."""
        known = self._properties.get("broker.id")
        return None if known is None else int(known)

    def assign_broker(self, broker_id: int) -> None:
        """Assign a new directory to the given broker, durably. Raises WrongDirectory when another broker owns it."""
        if self.broker_id is None:
            self._properties["broker.id"] = str(broker_id)
            _write(self.path, self._properties)
            sync_folder(self.path.parent)
        elif self.broker_id != broker_id:
            raise WrongDirectory(self.path, "broker.id", str(self.broker_id), str(broker_id))

    @property
    def directory_id(self) -> str:
        """Random, made when the directory was first used: identifies a copied or emptied directory."""
        return self._properties["directory.id"]

    @classmethod
    def open(cls, path: Path, *, cluster_id: str | None, broker_id: int | None) -> DataDirectory:
        """Lock the directory and check its owner, or claim it if it is new.

        `cluster_id` None takes the one in the directory (a new one in a new directory). `broker_id` None takes the
        one in the directory; a new directory then gets one by `assign_broker`. Raises DirectoryInUse, WrongDirectory,
        StorageIoError, DiskFull.
        """
        if private_folder(path):
            _tighten(path)
        lock = FolderLock(path, path / LOCK, wait_s=0)
        try:
            return cls(path, lock, _identify(path, cluster_id, broker_id))
        except BaseException:  # after any error the directory must not stay locked without being open
            lock.release()
            raise

    def partition_folders(self) -> list[tuple[str, int, Path]]:
        """Every partition in the directory, as (topic, partition, folder), sorted."""
        found = []
        for folder in list_files(self.path):
            parsed = parse_partition_folder(folder.name)
            if parsed is not None and is_folder(folder):
                found.append((*parsed, folder))
        return sorted(found)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tighten(path: Path) -> None:
    """Restrict files to their owner, as those of a copied directory may not be. Once: see `private_folder`."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = os.path.join(folder, name)
            with suppress(OSError):  # removed meanwhile, or not ours: the data directory itself is private already
                if not os.path.islink(place):
                    os.chmod(place, os.stat(place).st_mode & 0o700)


def _identify(path: Path, cluster_id: str | None, broker_id: int | None) -> dict[str, str]:
    text = read_text(path / META)
    if text is None:
        properties = {
            "version": VERSION,
            "cluster.id": cluster_id or uuid.uuid4().hex,
            "directory.id": uuid.uuid4().hex,
        }
        if broker_id is not None:
            properties["broker.id"] = str(broker_id)
            _write(path, properties)
            sync_folder(path.parent)
        return properties
    properties = parse_properties(text)
    _check_readable(path / META, properties)
    expected = {"cluster.id": cluster_id, "broker.id": None if broker_id is None else str(broker_id)}
    for key, value in expected.items():
        if value is not None and properties[key] != value:
            raise WrongDirectory(path, key, properties[key], value)
    return properties


def _check_readable(file: Path, properties: dict[str, str]) -> None:
    """Raise DataDirectoryError where this release cannot know whose directory it is."""
    version = properties.get("version", "")
    if version.isdecimal() and int(version) > int(VERSION):
        raise DataDirectoryError(
            f"{file} was written by a newer Raylog (version={version}; this one knows {VERSION}): install that release."
        )
    missing = [key for key in ("cluster.id", "broker.id", "directory.id") if not properties.get(key)]
    if version != VERSION or missing:
        what = "has no " + ", ".join(missing) if missing else f"has version={version or '(missing)'}"
        raise DataDirectoryError(
            f"{file} is damaged: it {what}. Bring the file back from a copy of the directory; it names the cluster and "
            "the broker of the data beside it."
        )


def _write(path: Path, properties: dict[str, str]) -> None:
    lines = "".join(f"{key}={value}\n" for key, value in properties.items())
    write_atomically(path / META, lines.encode())
