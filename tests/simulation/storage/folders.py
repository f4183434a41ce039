"""Partition folders beside the log: made, removed and set aside; a crash must neither bring one back nor lose one.

Rule S11 of `checks`. Called by the profile's `Calls`; the code under test is that of the broker (`set_aside`).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from raylog.actors.replica.set_aside import DAMAGED, clear_half_deleted, remove_partition_folder, set_aside
from raylog.storage.files import exists, is_folder, list_files, private_folder, sync_folder
from raylog.storage.log.checkpoints import METADATA, Checkpoints
from tests.simulation.storage.checks import require

TOPIC_ID: Final = "another-topic"


class Folders:
    """The folders `u-0`, `u-1` and so on of a disk, and where each must be."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        """Begin without a folder."""
        self._root, self._draw = root, draw
        self._made = 0
        self._places: dict[Path, set[str]] = {}
        """Where each folder may be: "." its own place, DAMAGED, or "" for nowhere."""

    def change(self) -> None:
        """Make a folder, remove one, or set one aside. Raises RaylogError: then it may have happened."""
        there = [folder for folder, places in self._places.items() if places == {"."}]
        if len(there) < 2:
            folder = self._root / f"u-{self._made}"
            self._made += 1
            self._places[folder] = {"", "."}
            private_folder(folder)
            Checkpoints(folder).claim(TOPIC_ID, "u", self._made - 1)
            sync_folder(folder.parent)
            self._places[folder] = {"."}
            return
        folder = self._draw.choice(there)
        after = self._draw.choice(("", DAMAGED))
        self._places[folder] = {".", after}
        if after:
            set_aside(folder, DAMAGED, TOPIC_ID, int(folder.name[2:]))
        else:
            remove_partition_folder(folder, TOPIC_ID)
        self._places[folder] = {after}

    def check(self, *, power: bool) -> None:
        """After a crash, and after the broker has finished what it interrupted, every folder is where it must be.

        Only a loss of `power` decides between two places: after a kill, the next one may still undo a rename.
        """
        clear_half_deleted(self._root)
        aside = list_files(self._root / DAMAGED) if is_folder(self._root / DAMAGED) else []
        for folder, allowed in list(self._places.items()):
            found = {"."} if exists(folder / METADATA) else set[str]()
            if any(path.name.startswith(f"{TOPIC_ID}-{folder.name[2:]}.") for path in aside):
                found.add(DAMAGED)
            possible = found & allowed if found else {""} & allowed
            require(bool(possible), "S11", f"{folder.name} is in {found or 'no place'}, it may be in {allowed}")
            require("." in allowed or "." not in found, "S11", f"{folder.name} is back, it may be in {allowed}")
            if power and len(found) > 1:
                del self._places[folder]  # halfway, under both names: a real file system repairs that in its own way
            elif power:
                self._places[folder] = possible
