"""The virtual disks of a world, one a node (profile `whole-disk`): they lose data, fill up, slow down and hang.

Created by the world, and put below the shipped storage by ``ports.py``. The nemesis draws the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Final

from tests.simulation.storage.disk import VirtualDisk
from tests.simulation.storage.filesystem import VirtualFileSystem
from tests.simulation.storage.nodes import File
from tests.simulation.whole.cluster import folder_of, host_of
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler

SLOW_S: Final = (0.02, 0.8)
"""How long a sync takes on a slow disk."""
RETRY_S: Final = 0.05
"""How often a sync on a hanging disk looks whether the disk works again."""
ROOM_MAX: Final = 3000
"""A disk that fills up takes up to this many bytes more."""


class NodeDisks:
    """Disks by host; `files` answers the calls of storage."""

    def __init__(self, scheduler: Scheduler, root: Path, brokers: int) -> None:
        """Mount an empty disk at the data directory of each broker below ``root``."""
        root.mkdir(exist_ok=True)
        self.files = VirtualFileSystem()
        self._scheduler = scheduler
        self._disks: dict[str, VirtualDisk] = {}
        self._hanging: dict[str, list[SimProcess]] = {}
        """Processes whose event loop waits for a hanging disk, by host."""
        self._repaired_s: dict[str, float] = {}
        for broker in range(1, brokers + 1):
            disk = self._disks[host_of(broker)] = VirtualDisk(int(scheduler.random.random() * 2**48))
            self.files.mount(folder_of(root, broker), disk)

    @property
    def deeds(self) -> list[Callable[[str], None]]:
        """The faults of one disk, by host; `repair` ends each."""
        return [self.fill, self.slow_down, self.hang]

    def lose_power(self, host: str) -> None:
        """A node lost its power: only data on its disk is left."""
        self._disks[host].lose_power()

    def fill(self, host: str) -> None:
        """The disk takes a few more bytes and then none."""
        self._scheduler.log("nemesis", f"the disk of {host} fills up")
        self._disks[host].faults.room = int(self._scheduler.random.random() * ROOM_MAX)

    def slow_down(self, host: str) -> None:
        """Each sync takes up to a second."""
        self._scheduler.log("nemesis", f"the disk of {host} is slow")
        self._disks[host].faults.pace = self._wait_a_while

    def hang(self, host: str) -> None:
        """No sync ends until the repair.

        A thread that syncs waits. An event loop stands still that syncs, or that waits for a lock of such a thread.
        """
        self._scheduler.log("nemesis", f"the disk of {host} hangs")
        self._hanging[host] = []
        self._disks[host].faults.pace = lambda _: self._wait_for_repair(host)

    def is_unwell(self, host: str) -> bool:
        """Return whether a disk fills up, is slow or hangs."""
        faults = self._disks[host].faults
        return faults.room is not None or faults.pace is not None

    def were_well(self, host: str, since_s: float) -> bool:
        """Return whether a disk has taken everything at once since a time."""
        return not self.is_unwell(host) and self._repaired_s.get(host, since_s) <= since_s

    def writes(self, host: str) -> bool:
        """Return whether a disk takes all that is written, if slowly: it neither fills up nor hangs."""
        return self._disks[host].faults.room is None and host not in self._hanging

    def clean_files(self, host: str) -> Iterator[tuple[PurePath, File]]:
        """Yield path and content of each file of a disk that no power cut would change."""
        return ((path, file) for path, file in self._disks[host].files() if file.is_clean and file.content)

    def repair(self, host: str) -> None:
        """The disk works as usual, with room."""
        faults = self._disks[host].faults
        if faults.room is not None or faults.pace is not None:
            self._scheduler.log("nemesis", f"the disk of {host} is as usual")
            self._repaired_s[host] = self._scheduler.now_s
        faults.room = faults.pace = None
        for process in self._hanging.pop(host, []):
            process.resume()

    def repair_all(self) -> None:
        """Repair every disk."""
        for host in self._disks:
            self.repair(host)

    def _wait_a_while(self, _: str) -> None:
        if self._scheduler.thread is not None:
            self._scheduler.thread.sleep(self._scheduler.between(*SLOW_S))

    def _wait_for_repair(self, host: str) -> None:
        thread, process = self._scheduler.thread, self._scheduler.current
        while thread is not None and host in self._hanging:
            thread.sleep(RETRY_S)
            if thread.is_hurried:
                break
        stands_still = thread is None or thread.is_hurried
        if stands_still and process is not None and not process.is_paused and host in self._hanging:
            process.pause()
            self._hanging[host].append(process)
