"""The virtual disks of a world, one a node (profile `whole-disk`): a loss of power drops unsynced data.

Created by the world, and put below the shipped storage by ``ports.py``.
"""

from __future__ import annotations

from pathlib import Path

from tests.simulation.storage.disk import VirtualDisk
from tests.simulation.storage.filesystem import VirtualFileSystem
from tests.simulation.whole.cluster import folder_of, host_of
from tests.simulation.whole.loop.scheduler import Scheduler


class NodeDisks:
    """Disks by host; `files` answers the calls of storage."""

    def __init__(self, scheduler: Scheduler, root: Path, brokers: int) -> None:
        """Mount an empty disk at the data directory of each broker below ``root``."""
        root.mkdir(exist_ok=True)
        self.files = VirtualFileSystem()
        self._disks: dict[str, VirtualDisk] = {}
        for broker in range(1, brokers + 1):
            disk = self._disks[host_of(broker)] = VirtualDisk(int(scheduler.random.random() * 2**48))
            self.files.mount(folder_of(root, broker), disk)

    def lose_power(self, host: str) -> None:
        """A node lost its power: only data on its disk is left."""
        self._disks[host].lose_power()
