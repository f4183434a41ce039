"""Pending offsets against a deliberately simple model: what is committed, what is pending, and which answers come."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    NonEmptyGroup,
    TransactionCoordinatorFenced,
    UnstableOffsetCommit,
)
from tests.unit.core.groups.context import Groups

PRODUCERS = st.sampled_from([7, 8])
PARTITIONS = st.integers(0, 2)
OFFSETS = st.integers(0, 99)


@dataclass
class Known:
    """What a producer's row has."""

    epoch: int
    coordinator: int = -1
    pending: dict[int, int] = field(default_factory=dict)


class PendingOffsets(RuleBasedStateMachine):
    """Producers of any epoch, ends of any coordinator, members and administrators, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups()
        self.committed: dict[int, int] = {}
        self.known: dict[int, Known] = {}

    def epoch(self, producer: int, ahead: int) -> int:
        known = self.known.get(producer)
        return max(0, ahead + (0 if known is None else known.epoch))

    @property
    def unstable(self) -> set[int]:
        return {partition for known in self.known.values() for partition in known.pending}

    @rule(producer=PRODUCERS, ahead=st.integers(-1, 1), partition=PARTITIONS, offset=OFFSETS)
    def commit_with_a_transaction(self, producer: int, ahead: int, partition: int, offset: int) -> None:
        epoch, known = self.epoch(producer, ahead), self.known.get(producer)
        code = self.groups.code(self.groups.txn_commit(offset, producer=producer, epoch=epoch, partition=partition))
        if known is not None and epoch < known.epoch:
            assert code == InvalidProducerEpoch.code
        elif known is not None and epoch > known.epoch and known.pending:
            assert code == ConcurrentTransactions.code
        else:
            assert code == 0
            known = self.known.setdefault(producer, Known(epoch))
            known.epoch = epoch
            known.pending[partition] = offset

    @rule(producer=PRODUCERS, ahead=st.integers(-1, 2), coordinator=st.integers(-1, 3), committed=st.booleans())
    def end(self, producer: int, ahead: int, coordinator: int, committed: bool) -> None:
        epoch, known = self.epoch(producer, ahead), self.known.get(producer)
        code = self.groups.code(
            self.groups.end_txn(committed=committed, producer=producer, epoch=epoch, coordinator_epoch=coordinator)
        )
        if known is not None and 0 <= coordinator < known.coordinator:
            assert code == TransactionCoordinatorFenced.code
        elif known is not None and epoch < known.epoch:
            assert code == InvalidProducerEpoch.code
        else:
            assert code == 0
            if known is None or epoch > known.epoch:
                if known is not None and committed:
                    self.committed.update(known.pending)
                before = -1 if known is None else known.coordinator
                self.known[producer] = Known(epoch, max(before, coordinator))

    @rule(partition=PARTITIONS, offset=OFFSETS)
    def commit(self, partition: int, offset: int) -> None:
        assert self.groups.code(self.groups.commit(offset, partition=partition)) == 0
        self.committed[partition] = offset
        for known in self.known.values():
            known.pending.pop(partition, None)

    @rule(partition=PARTITIONS)
    def delete_an_offset(self, partition: int) -> None:
        request = self.groups.delete_offsets(("id1", "flights", partition))
        if self.groups.code(request) == 0:
            code = UnstableOffsetCommit.code if partition in self.unstable else 0
            assert self.groups.reply(request) == [["flights", partition, code]]
        if partition not in self.unstable:
            self.committed.pop(partition, None)

    @rule()
    def delete_the_group(self) -> None:
        code = self.groups.code(self.groups.delete())
        assert (code == NonEmptyGroup.code) == bool(self.unstable)
        if not self.unstable:
            self.committed.clear()

    @rule()
    def restart(self) -> None:
        state = self.groups.machine.hard_state()
        self.groups = self.groups.restarted()
        assert self.groups.machine.hard_state() == state

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        rows = [["id1", "flights", partition, self.committed[partition], 3, ""] for partition in sorted(self.committed)]
        assert self.groups.reply(self.groups.fetch()) == rows
        code = self.groups.code(self.groups.fetch(stable=True))
        assert code == (UnstableOffsetCommit.code if self.unstable else 0)
        for partition in range(3):
            code = self.groups.code(self.groups.fetch(("id1", "flights", partition), stable=True))
            assert code == (UnstableOffsetCommit.code if partition in self.unstable else 0)

    @invariant()
    def a_group_exists_while_it_has_offsets(self) -> None:
        assert (self.groups.state == "Empty") == bool(self.committed or self.unstable)


TestPendingOffsets = PendingOffsets.TestCase
TestPendingOffsets.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
