"""Clients on brokers' hosts that read segments on virtual disks, which lose power, fill up and hang meanwhile.

Elsewhere in a world such clients find no file, and fetch. A file that they hold open stays, as the system keeps it,
when an administrator has its records deleted; one that lost its power cannot be read.
"""

from __future__ import annotations

import errno
import os
import random
import types
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raylog.actors.replica import consumer_reads
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.reading import local_files
from raylog.storage import filesystem
from tests.simulation.storage.disk import PowerLost, failure
from tests.simulation.whole.clients import Reader
from tests.simulation.whole.parts.part import Part, Until
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

NEAR_BYTES_MIN: Final = 1_500
"""So much is read from files, instead of many kilobytes: the worlds' topics are small."""
RULE: Final = "W91"
"""Clients on a leader's host read its files."""
HOSTS: Final = 2


class NodeFiles:
    """What `os` is to a client on a broker's host: the files of its virtual disk."""

    def __init__(self) -> None:
        """Nothing was opened."""
        self.reads = 0
        self._here = f"{Path.cwd()}/"  # leaders name absolute paths, and disks are mounted at relative ones

    def bind(self) -> None:
        """Have clients read these files."""
        shim = types.ModuleType("os")
        vars(shim).update(vars(os))
        vars(shim).update(open=self.open, fstat=filesystem.fstat, pread=self.pread, lstat=self.lstat)
        vars(local_files)["os"] = shim
        # The kernel closes the files of a killed process; its objects must not close other ones of these numbers.
        local_files.SegmentFile.__del__ = lambda _: None  # type: ignore[method-assign]

    def open(self, path: str, flags: int) -> int:
        """As `os.open`."""
        return filesystem.open(path.removeprefix(self._here), flags, 0)

    def lstat(self, path: str) -> Any:
        """As `os.lstat`; there are no links."""
        return filesystem.stat(path.removeprefix(self._here))

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        """As `os.pread`."""
        self.reads += 1
        try:
            return filesystem.pread(descriptor, size, position)
        except PowerLost:
            raise failure(errno.EIO) from None  # the client outlives its node here, and its file does not


class NearReaders(Part):
    """The readers of files of one world."""

    def __init__(self, world: World) -> None:
        """None has read."""
        super().__init__(world)
        self._files = NodeFiles()
        self._files.bind()
        consumer_reads.NEAR_BYTES_MIN = NEAR_BYTES_MIN  # type: ignore[misc]

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Need virtual disks."""
        config = {**plan.config, "replica.sync.time.max.ms": "2000"}
        return replace(plan, disks=True, power_cuts=True, config=config, work_s=plan.work_s + 4.0)

    def start(self) -> None:
        """Start readers that go back often, so that there is much to read from files."""
        for number in range(1, HOSTS + 1):
            name = f"file-reader-{number}"
            reader = Reader(self.world, name, seeks=0.3)
            self.world.spawn(name, reader.run(), self.world.cluster.host(number))

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Files were read."""
        if not self._files.reads:
            raise Violation(RULE, f"{HOSTS} readers on the hosts of leaders have read no file")
