"""Groups that end: a later one of the same name begins with generation 1 again, as Kafka's do. Made by `observer.py`.

A coordinator that falls asleep deletes the groups that have neither members nor offsets.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.groups.consumer_records import EpochsChanged
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.records import GroupChanged
from raylog.protocol.rows import Tombstone
from tests.simulation.whole.books import Books


def watch_groups(books: Books) -> None:
    """Note each group that a coordinator deletes from now on in the books."""
    expire: Callable[[GroupCoordinatorMachine, GroupDecision], None] = GroupCoordinatorMachine._expire

    def noted(machine: GroupCoordinatorMachine, decision: GroupDecision) -> None:
        expire(machine, decision)
        for record in decision.records:
            if isinstance(record, Tombstone) and record.kind in (GroupChanged, EpochsChanged):
                books.group_ended(str(record.key[0]))

    GroupCoordinatorMachine._expire = noted  # type: ignore[assignment, method-assign]
