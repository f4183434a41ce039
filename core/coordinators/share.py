"""The keys of one coordinator: the groups or transactional ids that hash to its partition. Pure.

Requests for keys of other coordinators arrive, because the system reuses addresses and clients' metadata may be old. A
coordinator that served such a request would be a second coordinator of that key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raylog.base.errors import NotCoordinator
from raylog.core.coordinators.hashing import coordinator_partition


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """The keys of partition ``index`` of a coordinators' topic with so many ``partitions``."""

    index: int
    partitions: int

    def refusal(self, key: str) -> NotCoordinator | None:
        """Return the error for a request about a key of another coordinator; None = the key belongs to this one."""
        partition = coordinator_partition(key, self.partitions)
        if partition == self.index:
            return None
        return NotCoordinator(f"{key!r:.100} belongs to coordinator {partition}, and this is {self.index}; find it.")

    def list_refusal(self, coordinator: int) -> NotCoordinator | None:
        """Return the error for a request for the list of another coordinator, or None; -1 = the sender names none."""
        if coordinator in (-1, self.index):
            return None
        return NotCoordinator(f"The list of coordinator {coordinator} was requested of {self.index}; find it.")


EVERY_KEY: Final = CoordinatorKeys(0, 1)
"""The share of the only coordinator, where the topic has one partition."""
