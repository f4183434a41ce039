"""What the log says, kept beside it by an observer, and the claims that must hold of it and of the members.

``CL1`` a partition has one owner in the log, and one process that holds it as a member. ``CL2`` committed offsets do
not move back, and an acknowledged commit is in the log. ``CL3`` epochs grow. ``CL4`` a member that is not removed loses
nothing. ``CL5`` a failed-over coordinator knows what the log says. ``CL6`` once faults have ended, every partition is
read again within the stated time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raylog.actors.coordinators.runner import proof_row
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.consumer_records import CurrentChanged, EpochsChanged, Place, places_in
from raylog.core.groups.records import GROUP_ROWS, GroupChanged, OffsetCommitted
from raylog.protocol.rows import Tombstone
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.consumers.member import Member

Row = tuple[list[object], list[object] | None]


class Books:
    """The group as the log has it."""

    def __init__(self, group: str) -> None:
        """Start with an empty log."""
        self.group = ConsumerGroup(group)
        self.offsets: dict[Place, int] = {}
        self.commits = self.epochs = 0
        self.removed: set[str] = set()
        """Every member that a coordinator has decided to remove."""

    def row(self, row: Row) -> None:
        """A row is durable."""
        if row[0] == proof_row():
            return
        record = GROUP_ROWS.read(*row)
        if isinstance(record, OffsetCommitted):
            place = Place(record.topic_id, record.topic, record.partition)
            if record.offset < self.offsets.get(place, 0):
                raise Violation("CL2", f"{place} goes back from {self.offsets[place]} to {record.offset}")
            self.offsets[place] = record.offset
            self.commits += 1
        elif not (isinstance(record, Tombstone) and record.kind in (OffsetCommitted, GroupChanged)):
            if isinstance(record, EpochsChanged):
                self._epochs_grow(record)
            if isinstance(record, CurrentChanged):
                for place in places_in((*record.assigned, *record.revoking)):
                    owner = self.group.owners.get(place, record.member_id)
                    if owner != record.member_id:
                        raise Violation("CL1", f"{place} goes to {record.member_id}, and {owner} still has it")
                before = self.group.currents.get(record.member_id)
                if before is not None and -2 < record.epoch < before.epoch:
                    raise Violation("CL3", f"{record.member_id} falls from epoch {before.epoch} to {record.epoch}")
            self.group.apply(record)  # type: ignore[arg-type]

    def _epochs_grow(self, record: EpochsChanged) -> None:
        if record.epoch < self.group.epoch or record.target_epoch < self.group.target_epoch:
            raise Violation("CL3", f"the group's epoch falls from {self.group.epoch} to {record.epoch}")
        self.epochs += record.epoch > self.group.epoch

    def acknowledged(self, place: Place, offset: int) -> None:
        """A member's commit was answered without an error."""
        if self.offsets.get(place, 0) < offset:
            raise Violation("CL2", f"{place} is at {self.offsets.get(place)}, and {offset} was acknowledged")

    def none_is_shared(self, members: Iterable[Member]) -> None:
        """No partition is held by two processes that are members."""
        holders: dict[Place, str] = {}
        for member in members:
            if member.membership.member_id not in self.group.members or member.membership.lost:
                continue
            for partition, topic_id in {**member.membership.owned, **member.states}.items():
                place = Place(topic_id, *partition)
                other = holders.setdefault(place, member.membership.member_id)
                if other != member.membership.member_id:
                    raise Violation("CL1", f"{place} is held by {other} and by {member.membership.member_id}")
