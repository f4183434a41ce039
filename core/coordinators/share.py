"""The keys of one coordinator: the groups or transactional ids that hash to its partition. Pure.

Addresses are given out again by the system, and metadata is late at times, so that requests for others' keys arrive. A
coordinator that served one would be a second one for that key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.errors import NotCoordinator


@dataclass(frozen=True, slots=True)
class KeyShare:
    """Partition ``index`` of a coordinators' topic with so many ``partitions`` and this configuration of its own."""

    index: int
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, key: str) -> NotCoordinator | None:
        """Return the error of a request for a key of another coordinator; None = it is of this one."""
        partition = coordinator_partition(key, self.partitions, self.config)
        if partition == self.index:
            return None
        return NotCoordinator(f"{key!r:.100} belongs to coordinator {partition}, and this is {self.index}; find it.")

    def list_refusal(self, coordinator: int) -> NotCoordinator | None:
        """Return the error of a request for the list of another coordinator; -1 = the sender does not name one."""
        if coordinator in (-1, self.index):
            return None
        return NotCoordinator(f"The list of coordinator {coordinator} was requested of {self.index}; find it.")


EVERY_KEY: Final = KeyShare(0, 1)
"""Of the coordinator of a topic with one partition."""
