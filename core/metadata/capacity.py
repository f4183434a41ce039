"""How many replicas a broker can have: awake ones, each a process, and all of them. Pure, from what brokers report.

Used by the controller, which refuses more and states the reason. The brokers of one machine share its memory and its
cores; open files are limited for each process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REPLICA_BYTES: Final = 24 << 20
"""Memory of a replica at rest: 600 of them, dozing, took 14.6 GB of their own (docs/operations.md)."""
MEMORY_SHARE: Final = 0.7
"""Share of the memory for awake replicas; so 24 GiB hold 716. The rest is for Ray, its users' work, and the page
cache."""
PER_CORE: Final = 100
"""Replicas for a core where none dozes: each takes 9 ms of CPU a second at rest. One that dozes takes 0.06 ms."""
FILES: Final = 4
"""A broker's open files for an awake replica: its socket, its descriptor of the process, what it is offered to watch,
and a connection."""
FILES_SHARE: Final = 0.5
"""Share of a broker's open files for awake replicas; the rest is for clients, and for the broker's own log."""
DECLARED_BYTES: Final = 16_000
"""Memory that broker and controller take for a replica, asleep or not: 10,000 took 132 MB, the processes included."""
DECLARED_SHARE: Final = 0.1
"""Share of the memory for what brokers and controller keep about all replicas; so 24 GiB hold 161,000."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on the number of replicas, and its reason, in words that follow "may have 5: "."""

    limit: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a broker reports when it registers; -1 = not known."""

    memory_bytes: int = -1
    """Memory of its machine, or of its container."""
    cores: int = -1
    open_files: int = -1
    """How many its process may have open at a time."""
    can_doze: bool = False
    """Whether it may stop the processes of its replicas."""

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Capacity:
        """Read the wire form; fields that an earlier release lacks are not known, those of a later one are ignored."""
        memory_bytes, cores, open_files, can_doze = (*row, -1, -1, -1, -1)[:4]
        return cls(memory_bytes=memory_bytes, cores=cores, open_files=open_files, can_doze=can_doze > 0)

    def to_row(self) -> tuple[int, ...]:
        """Return the wire form."""
        return self.memory_bytes, self.cores, self.open_files, int(self.can_doze)

    def awake(self, *, stated: int, dozes: bool, sharing: int) -> Bound | None:
        """Return how many replicas a broker may have awake: the lowest of its bounds; None = nothing is known.

        ``stated``: ``replica.awake.max``, -1 = it is not set. If set, it replaces the bounds by memory and cores; the
        bound by open files holds all the same. ``dozes``: the cluster lets replicas doze. ``sharing``: the number of
        brokers on its machine.
        """
        found = []
        if stated >= 0:
            found.append(Bound(stated, "replica.awake.max"))
        elif self.memory_bytes >= 0:
            found.append(_of_memory(self.memory_bytes, MEMORY_SHARE, REPLICA_BYTES, "24 MiB each", sharing))
        if stated < 0 and self.cores >= 0 and not (dozes and self.can_doze):
            limit = self.cores * PER_CORE // sharing
            cores = f"{PER_CORE} for each of its machine's {self.cores} cores, as replicas do not doze there"
            found.append(Bound(max(1, limit), cores + _shared(sharing)))
        if self.open_files >= 0:
            limit = int(self.open_files * FILES_SHARE) // FILES
            files = f"half of the {self.open_files:,} files that its process may have open, {FILES} each (ulimit -n)"
            found.append(Bound(max(1, limit), files))
        return min(found, key=lambda bound: bound.limit, default=None)

    def declared(self, *, sharing: int) -> Bound | None:
        """Return how many replicas a broker may have, asleep or awake; None = nothing is known."""
        if self.memory_bytes < 0:
            return None
        return _of_memory(self.memory_bytes, DECLARED_SHARE, DECLARED_BYTES, "16 kB each", sharing)


UNKNOWN: Final = Capacity()


def _of_memory(memory_bytes: int, share: float, each_bytes: int, each: str, sharing: int) -> Bound:
    limit = int(memory_bytes * share) // each_bytes // sharing
    why = f"{share * 100:.0f} % of its machine's {memory_bytes / (1 << 30):.1f} GiB of memory, {each}"
    return Bound(max(1, limit), why + _shared(sharing))


def _shared(sharing: int) -> str:
    return f", shared by {sharing} brokers" if sharing > 1 else ""
