"""Offsets committed with a transaction: pending until its end, fenced by epochs, and kept from being lost."""

from raylog.base.errors import (
    ConcurrentTransactions,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    RecordTooLarge,
    TransactionCoordinatorFenced,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.records import GROUP_ROWS, TxnKey, TxnOffsets
from raylog.protocol.groups import OffsetCommitPartition
from tests.unit.core.groups.context import GROUP, Groups

DAY_MS = 24 * 3_600_000
HERE = ("id1", "flights", 0)
NONE = [[*HERE, -1, -1, ""]]


def at(offset: int) -> list[object]:
    return [[*HERE, offset, 3, ""]]


def test_offsets_of_a_transaction_take_effect_when_it_commits(groups: Groups) -> None:
    groups.commit(1)
    assert groups.reply(groups.txn_commit(5)) == [["flights", 0, 0]]
    assert groups.reply(groups.fetch(HERE)) == at(1)
    assert groups.code(groups.fetch(HERE, stable=True)) == UnstableOffsetCommit.code
    assert groups.code(groups.fetch(stable=True)) == UnstableOffsetCommit.code
    assert groups.reply(groups.fetch(("id1", "flights", 1), stable=True)) == [["id1", "flights", 1, -1, -1, ""]]
    assert groups.reply(groups.end_txn(committed=True)) == []
    assert groups.reply(groups.fetch(HERE, stable=True)) == at(5)


def test_offsets_of_an_aborted_transaction_are_forgotten(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.end_txn(committed=False)
    assert groups.reply(groups.fetch(HERE, stable=True)) == NONE
    assert groups.state == "Dead"


def test_a_transaction_may_commit_several_times_and_the_last_counts(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.txn_commit(8, partition=1)
    groups.txn_commit(6)
    groups.end_txn(committed=True)
    assert groups.reply(groups.fetch()) == [*at(6), ["id1", "flights", 1, 8, 3, ""]]


def test_a_repeated_end_does_not_end_the_next_transaction(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.end_txn(committed=True)
    groups.txn_commit(9, epoch=1)
    assert groups.reply(groups.end_txn(committed=True)) == []
    assert groups.reply(groups.end_txn(committed=False)) == []
    assert groups.reply(groups.fetch(HERE)) == at(5)
    assert groups.code(groups.fetch(HERE, stable=True)) == UnstableOffsetCommit.code
    groups.end_txn(committed=True, epoch=2)
    assert groups.reply(groups.fetch(HERE, stable=True)) == at(9)


def test_a_commit_after_the_end_of_its_transaction_is_refused() -> None:
    for before in (True, False):
        groups = Groups()
        if before:
            groups.txn_commit(5)
        groups.end_txn(committed=False)
        for each in (groups, groups.restarted()):
            assert each.code(each.txn_commit(6)) == InvalidProducerEpoch.code


def test_an_end_of_an_earlier_epoch_is_refused(groups: Groups) -> None:
    groups.txn_commit(5, epoch=3)
    assert groups.code(groups.end_txn(committed=True, epoch=2)) == InvalidProducerEpoch.code
    assert groups.code(groups.fetch(HERE, stable=True)) == UnstableOffsetCommit.code


def test_a_coordinator_that_was_replaced_ends_no_transaction(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.end_txn(committed=True, coordinator_epoch=4)
    groups.txn_commit(9, epoch=1)
    for each in (groups, groups.restarted()):
        refused = each.end_txn(committed=False, epoch=2, coordinator_epoch=3)
        assert each.code(refused) == TransactionCoordinatorFenced.code
        assert each.code(each.fetch(HERE, stable=True)) == UnstableOffsetCommit.code
        assert each.code(each.end_txn(committed=False, epoch=2, coordinator_epoch=-1)) == 0
        refused = each.end_txn(committed=True, epoch=3, coordinator_epoch=3)
        assert each.code(refused) == TransactionCoordinatorFenced.code


def test_a_transaction_waits_for_the_end_of_the_one_before(groups: Groups) -> None:
    groups.txn_commit(5)
    assert groups.code(groups.txn_commit(9, epoch=1)) == ConcurrentTransactions.code
    groups.end_txn(committed=True)
    assert groups.code(groups.txn_commit(9, epoch=1)) == 0
    assert groups.reply(groups.fetch(HERE)) == at(5)


def test_pending_offsets_survive_a_restart(groups: Groups) -> None:
    groups.txn_commit(5, metadata="note")
    after = groups.restarted()
    assert after.machine.hard_state() == groups.machine.hard_state()
    assert after.state == "Empty"
    after.end_txn(committed=True)
    assert after.reply(after.fetch(HERE)) == [[*HERE, 5, 3, "note"]]


def test_an_end_that_is_stored_in_part_is_completed_by_its_repetition(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.txn_commit(6, partition=1)
    before = len(groups.log)
    groups.end_txn(committed=True)
    whole = groups.machine.hard_state()
    for stored in range(before, len(groups.log)):
        part = Groups(groups.settings, groups.log[:stored])
        assert part.code(part.fetch(stable=True)) == UnstableOffsetCommit.code
        part.end_txn(committed=True)
        assert part.machine.hard_state() == whole


def test_producers_end_their_transactions_apart(groups: Groups) -> None:
    groups.txn_commit(5, producer=7)
    groups.txn_commit(6, producer=8, partition=1)
    groups.end_txn(committed=False, producer=7)
    assert groups.reply(groups.fetch(HERE, stable=True)) == NONE
    groups.end_txn(committed=True, producer=8)
    assert groups.reply(groups.fetch(stable=True)) == [["id1", "flights", 1, 6, 3, ""]]


def test_a_later_commit_without_a_transaction_counts(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.txn_commit(6, partition=1)
    groups.commit(2)
    assert groups.reply(groups.fetch(HERE, stable=True)) == at(2)
    for each in (groups.restarted(), groups):
        each.end_txn(committed=True)
        assert each.reply(each.fetch(stable=True)) == [*at(2), ["id1", "flights", 1, 6, 3, ""]]


def test_members_commit_in_their_generation_alone(groups: Groups) -> None:
    (member,) = groups.stable(1)
    assert groups.code(groups.txn_commit(5)) == UnknownMemberId.code
    assert groups.code(groups.txn_commit(5, member_id="other", generation=1)) == UnknownMemberId.code
    assert groups.code(groups.txn_commit(5, member_id=member, generation=0)) == IllegalGeneration.code
    assert groups.code(groups.fetch(HERE, stable=True)) == 0
    assert groups.code(groups.txn_commit(5, member_id=member, generation=1)) == 0


def test_a_group_that_does_not_exist_has_no_generation_to_commit_in(groups: Groups) -> None:
    assert groups.code(groups.txn_commit(5, member_id="m", generation=1)) == IllegalGeneration.code
    assert groups.state == "Dead"


def test_a_transaction_goes_on_while_its_generation_is_not_assigned(groups: Groups) -> None:
    (member,) = groups.completing(1)
    assert groups.code(groups.commit(5, member_id=member, generation=1)) == RebalanceInProgress.code
    assert groups.code(groups.txn_commit(5, member_id=member, generation=1)) == 0


def test_a_transaction_ends_whatever_became_of_the_member(groups: Groups) -> None:
    (member,) = groups.stable(1)
    groups.txn_commit(5, member_id=member, generation=1)
    groups.leave((member, None))
    assert groups.code(groups.end_txn(committed=True)) == 0
    assert groups.reply(groups.fetch(HERE, stable=True)) == at(5)


def test_a_bad_offset_or_long_note_is_refused_for_its_partition_alone(groups: Groups) -> None:
    assert groups.reply(groups.txn_commit(-1)) == [["flights", 0, InvalidRequest.code]]
    assert groups.reply(groups.txn_commit(1, metadata="x" * 4097)) == [["flights", 0, OffsetMetadataTooLarge.code]]
    groups.txn_commit(2, partition=1)
    groups.end_txn(committed=True)
    assert groups.reply(groups.fetch()) == [["id1", "flights", 1, 2, 3, ""]]


def test_pending_offsets_that_do_not_fit_into_one_record_are_refused() -> None:
    groups = Groups(GroupSettings(record_bytes_max=1_000))
    groups.txn_commit(1, metadata="x" * 500)
    assert groups.code(groups.txn_commit(1, partition=1, metadata="x" * 500)) == RecordTooLarge.code
    groups.end_txn(committed=True)
    assert groups.reply(groups.fetch()) == [[*HERE, 1, 3, "x" * 500]]


def test_a_producer_without_an_identity_is_refused(groups: Groups) -> None:
    assert groups.code(groups.txn_commit(1, producer=-1)) == InvalidRequest.code
    assert groups.code(groups.txn_commit(1, epoch=-1)) == InvalidRequest.code


def test_a_group_with_pending_offsets_is_not_deleted(groups: Groups) -> None:
    groups.commit(1)
    groups.txn_commit(5)
    assert groups.code(groups.delete()) == NonEmptyGroup.code
    assert groups.reply(groups.delete_offsets(HERE)) == [["flights", 0, UnstableOffsetCommit.code]]
    assert groups.reply(groups.fetch(HERE)) == at(1)
    groups.end_txn(committed=True)
    assert groups.code(groups.delete()) == 0
    assert groups.code(groups.describe()) == GroupIdNotFound.code
    assert groups.code(groups.txn_commit(6)) == InvalidProducerEpoch.code


def test_a_group_that_has_only_pending_offsets_exists(groups: Groups) -> None:
    groups.txn_commit(5)
    assert groups.reply(groups.list_groups()) == [[GROUP, "", "Empty", "classic"]]
    described = groups.described()
    assert described["offsets"] == []
    assert described["pending_offsets"] == [[7, 0, *HERE, 5, 3, ""]]


def test_pending_offsets_are_counted(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.txn_commit(6, partition=1)
    groups.txn_commit(7, producer=8)
    assert [group.pending_offsets for group in groups.machine.census()] == [3]
    groups.end_txn(committed=True)
    assert [group.pending_offsets for group in groups.machine.census()] == [1]


def test_pending_offsets_do_not_expire(groups: Groups) -> None:
    groups.commit(1)
    groups.commit(2, partition=1)
    groups.txn_commit(5)
    groups.tick(8 * DAY_MS)
    assert groups.reply(groups.fetch()) == at(1)
    groups.end_txn(committed=True)
    assert groups.reply(groups.fetch()) == at(5)
    groups.tick(8 * DAY_MS)
    assert groups.state == "Dead"


def test_a_producers_epoch_is_kept_for_a_day(groups: Groups) -> None:
    groups.txn_commit(5)
    groups.end_txn(committed=False)
    groups.tick(DAY_MS - 1)
    assert groups.code(groups.txn_commit(5)) == InvalidProducerEpoch.code
    groups.tick(600_000)
    assert groups.machine.hard_state() == [[], []]
    assert groups.restarted().machine.hard_state() == [[], []]


def test_epochs_are_forgotten_over_several_ticks() -> None:
    groups = Groups(GroupSettings(txn_fence_retention_ms=1_000, offsets_retention_check_ms=1_000))
    for producer in range(1_500):
        groups.end_txn(committed=True, producer=producer)
    written = len(groups.log)
    groups.tick(1_000)
    assert len(groups.log) - written == 1_000
    groups.tick(50)
    assert groups.machine.hard_state() == [[], []]


def test_a_row_of_pending_offsets_keeps_fields_that_later_releases_add() -> None:
    row = TxnOffsets(
        *TxnKey("g", 7),
        producer_epoch=2,
        coordinator_epoch=3,
        offsets=(OffsetCommitPartition("i", "t", 0, 5, 1, "note"),),
        changed_ms=9,
    )
    key, value = row.to_wire()
    assert value is not None
    assert (key, value) == (["txn", "g", 7], [1, 2, 3, (["i", "t", 0, 5, 1, "note"],), 9])
    assert GROUP_ROWS.read(key, value) == row
    assert GROUP_ROWS.read([*key, "later"], [*value[:3], [["i", "t", 0, 5, 1, "note", "later"]], 9, "later"]) == row
