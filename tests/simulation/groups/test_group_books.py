"""The books of I15 have bugs too: one correct history, and one hand-made history per anomaly."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from raylog.base.ids import TopicPartition
from raylog.client.assignor import Subscription
from raylog.client.group.embedded_protocol import encode_assignment, encode_subscription
from raylog.core.groups.records import GroupChanged, MemberRecord, OffsetCommitted, OffsetKey
from raylog.core.groups.states import GroupState
from raylog.protocol.groups import JoinGroupProtocol
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.books import EXPIRY_MS, WALL_AHEAD_MS, Claim, GroupBooks
from tests.simulation.groups.topic import ELSE_ID, ELSEWHERE, TOPIC, TOPIC_ID, Row, Sender
from tests.simulation.world import Violation

LIFE = 1
KEY = OffsetKey("g", TOPIC_ID, TOPIC, 0)
ELSEWHERE_KEY = OffsetKey("g", ELSE_ID, ELSEWHERE, 0)
RETENTION_MS = 1_000


def anomaly() -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, check=lambda found: found.rule == "I15")


def member(member_id: str, *partitions: int, instance: str | None = None) -> MemberRecord:
    assignment = encode_assignment([TopicPartition("orders", number) for number in partitions]) if partitions else b""
    return MemberRecord(
        member_id=member_id,
        instance_id=instance,
        client_id="reader",
        session_timeout_ms=600,
        rebalance_timeout_ms=1000,
        protocols=(JoinGroupProtocol("range", b""),),
        assignment=assignment,
    )


def keeper(member_id: str, owned: tuple[int, ...], *partitions: int) -> MemberRecord:
    """A cooperative member that holds ``owned`` while it joins, and gets ``partitions``."""
    held = tuple(TopicPartition(TOPIC, number) for number in owned)
    metadata = encode_subscription(Subscription(topics=(TOPIC,), owned=held, generation=1))
    protocols = (JoinGroupProtocol("cooperative-sticky", metadata),)
    return replace(member(member_id, *partitions), protocols=protocols)


class History:
    """A log of one group, written record by record."""

    def __init__(self, partitions: int = 0) -> None:
        self.books = GroupBooks(partitions, RETENTION_MS)
        self.now_ms = 0
        self._end = count()
        self.books.loaded(LIFE, 0)

    def write(
        self, record: GroupChanged | OffsetCommitted | Tombstone, *, sender: Sender | None = None, request: int = 0
    ) -> None:
        key, value = record.to_wire()
        self.books.stored(next(self._end), Row(key, value, self.now_ms, LIFE, request, sender))

    def generation(self, number: int, *members: MemberRecord, stable: bool = True, protocol: str = "range") -> None:
        self.now_ms += 10
        state = (GroupState.STABLE if stable else GroupState.COMPLETING_REBALANCE) if members else GroupState.EMPTY
        self.write(
            GroupChanged(
                group="g",
                generation=number,
                protocol_type="consumer",
                protocol=protocol,
                leader=members[0].member_id if members else "",
                state=state,
                changed_ms=WALL_AHEAD_MS + self.now_ms,
                members=members,
            )
        )

    def commit(
        self,
        member_id: str,
        generation: int,
        offset: int,
        *,
        process: int = 1,
        back: bool = False,
        key: OffsetKey = KEY,
    ) -> None:
        self.write(
            OffsetCommitted(
                *key,
                offset=offset,
                leader_epoch=-1,
                metadata="",
                committed_ms=WALL_AHEAD_MS + self.now_ms,
            ),
            sender=Sender(process, member_id, generation, back),
        )


@pytest.fixture
def history() -> History:
    """Members a and b, with fresh heartbeats, in a stable generation 1."""
    found = History()
    found.generation(1, member("a"), member("b"), stable=False)
    found.generation(1, member("a", 0), member("b", 1))
    for each in ("a", "b"):
        found.books.active(LIFE, "g", each, found.now_ms)
        found.books.synced(LIFE, "g", each, 1, found.now_ms)
    return found


def claim(member_id: str, generation: int, *partitions: int) -> Claim:
    return Claim("g", member_id, generation, frozenset(partitions))


def test_a_group_as_it_should_be(history: History) -> None:
    books = history.books
    books.joined(1, 1)
    books.claims(1, claim("a", 1, 0))
    books.claims(2, claim("b", 1, 1))
    books.begins_at("g", 0, 0)
    books.processed("g", 0, 5)
    history.commit("a", 1, 5)
    books.offsets_answered("g", 3, [[TOPIC_ID, "orders", 0, 5, -1, ""]])
    books.gives_back(1)
    history.generation(2, member("b"), member("a"), stable=False)
    books.joined(1, 2)
    history.generation(2, member("b", 0), member("a", 1))
    books.claims(2, claim("b", 2, 0))
    books.begins_at("g", 0, 5)
    assert books.owners("g") == {0: 2}
    assert books.committed("g", 0) == 5


def test_two_members_hold_a_partition_of_one_generation(history: History) -> None:
    history.books.claims(1, claim("a", 1, 0))
    with anomaly():
        history.books.claims(2, claim("b", 1, 0, 1))


def test_two_processes_hold_a_partition_under_one_member_id(history: History) -> None:
    history.books.claims(1, claim("a", 1, 0))
    with anomaly():
        history.books.claims(3, claim("a", 1, 0))


def test_a_fenced_member_of_an_old_generation_may_claim_anything(history: History) -> None:
    history.books.claims(1, claim("a", 1, 0))
    history.generation(2, member("a"), member("b"))
    history.books.claims(2, claim("b", 2, 0))


def test_a_replaced_static_member_is_fenced_within_the_generation() -> None:
    history = History()
    history.generation(1, member("old", 0, instance="i"))
    history.books.claims(1, claim("old", 1, 0))
    history.generation(1, member("new", 0, instance="i"))
    history.books.claims(2, claim("new", 1, 0))
    assert history.books.owners("g") == {0: 2}


def test_a_replaced_static_member_is_unknown_rather_than_fenced() -> None:
    history = History()
    history.generation(1, member("new", 0, instance="i"))
    books = history.books
    books.taken_for_a_stranger(LIFE, "g", "old", "i", history.now_ms)
    books.active(LIFE, "g", "new", history.now_ms)
    books.taken_for_a_stranger(LIFE, "g", "new", "i", history.now_ms)
    books.taken_for_a_stranger(LIFE, "g", "old", "i", history.now_ms + 300)
    with anomaly():
        books.taken_for_a_stranger(LIFE, "g", "old", "i", history.now_ms + 299)


def test_a_static_member_that_does_not_sync_in_time_may_be_removed() -> None:
    history = History()
    history.generation(1, member("new", 0, instance="i"))
    books = history.books
    late_ms = history.now_ms + 1_000
    books.active(LIFE, "g", "new", late_ms)
    books.taken_for_a_stranger(LIFE, "g", "old", "i", late_ms)
    books.synced(LIFE, "g", "new", 1, late_ms - 1)
    with anomaly():
        books.taken_for_a_stranger(LIFE, "g", "old", "i", late_ms)


def test_an_assignment_that_gives_a_partition_twice(history: History) -> None:
    with anomaly():
        history.generation(2, member("a", 0), member("b", 0))


def test_an_assignment_that_changes_within_a_generation(history: History) -> None:
    with anomaly():
        history.generation(1, member("a", 1), member("b", 0))


def test_a_generation_that_falls(history: History) -> None:
    history.generation(3, member("a"), member("b"))
    with anomaly():
        history.generation(2, member("a"), member("b"))


def test_a_member_receives_an_older_generation(history: History) -> None:
    history.books.joined(1, 4)
    with anomaly():
        history.books.joined(1, 3)


def test_a_generation_without_a_member_that_lives(history: History) -> None:
    with anomaly():
        history.generation(2, member("a"), stable=False)


@pytest.mark.parametrize("why", ["it left", "it was silent", "it did not join in time"])
def test_a_generation_without_a_member_that_left_or_fell_silent(history: History, why: str) -> None:
    if why == "it left":
        history.books.leave_requested("g", "b")
    elif why == "it was silent":
        history.now_ms += 700
    else:
        history.now_ms += 1100
        history.books.active(LIFE, "g", "b", history.now_ms)
    history.generation(2, member("a"), stable=False)


def test_a_commit_of_an_old_generation(history: History) -> None:
    history.generation(2, member("a"), member("b"))
    with anomaly():
        history.commit("a", 1, 5)


def test_a_commit_of_a_sender_that_is_no_member(history: History) -> None:
    with anomaly():
        history.commit("c", 1, 5)


def test_a_commit_from_outside_while_there_are_members(history: History) -> None:
    with anomaly():
        history.commit("", -1, 5)


def test_a_commit_from_outside_into_an_empty_group() -> None:
    history = History()
    history.generation(1)
    history.commit("", -1, 5)


def test_a_committed_offset_that_goes_back(history: History) -> None:
    history.commit("a", 1, 5)
    with anomaly():
        history.commit("b", 1, 4, process=2)


def test_a_committed_offset_that_a_client_sets_back(history: History) -> None:
    history.commit("a", 1, 5)
    history.commit("b", 1, 4, process=2, back=True)


def test_a_commit_that_comes_behind_a_later_one_of_its_sender(history: History) -> None:
    history.commit("a", 1, 5)
    history.commit("a", 1, 4)


def test_a_commit_that_is_acknowledged_before_it_is_stored(history: History) -> None:
    with anomaly():
        history.books.commit_answered(LIFE, 7, 1)


@pytest.mark.parametrize("shown", [-1, 4, 6])
def test_an_offset_that_is_not_the_last_commit(history: History, shown: int) -> None:
    history.commit("a", 1, 4)
    history.commit("a", 1, 5)
    with anomaly():
        history.books.offsets_answered("g", 4, [[TOPIC_ID, "orders", 0, shown, -1, ""]])


def test_an_offset_committed_while_it_was_requested(history: History) -> None:
    history.commit("a", 1, 4)
    history.commit("a", 1, 5)
    history.books.offsets_answered("g", 3, [[TOPIC_ID, "orders", 0, 4, -1, ""]])
    history.books.offsets_answered("g", 3, [[TOPIC_ID, "orders", 0, 5, -1, ""]])


def test_a_member_that_begins_behind_what_any_member_read(history: History) -> None:
    history.books.begins_at("g", 0, 0)
    history.books.processed("g", 0, 5)
    with anomaly():
        history.books.begins_at("g", 0, 6)


def test_a_member_id_that_is_given_twice(history: History) -> None:
    history.books.gave_id("a", 1)
    with anomaly():
        history.books.gave_id("a", 2)


def test_offsets_and_groups_do_not_vanish(history: History) -> None:
    history.commit("a", 1, 4)
    with anomaly():
        history.write(Tombstone(OffsetCommitted, KEY))
    with anomaly():
        history.write(Tombstone(GroupChanged, ("g",)))


def test_an_offset_is_forgotten_after_its_group_was_empty_for_long(history: History) -> None:
    history.commit("a", 1, 4)
    history.books.leave_requested("g", "a")
    history.books.leave_requested("g", "b")
    history.generation(2)
    history.now_ms += RETENTION_MS - 1
    with anomaly():
        history.write(Tombstone(OffsetCommitted, KEY))
    history.now_ms += 1
    assert history.books.overdue(history.now_ms) == []
    assert history.books.overdue(history.now_ms + EXPIRY_MS + 1) == [("g", 0, TOPIC_ID)]
    history.write(Tombstone(OffsetCommitted, KEY))
    history.write(Tombstone(GroupChanged, ("g",)))
    assert history.books.overdue(history.now_ms + EXPIRY_MS + 1) == []
    history.books.offsets_answered("g", 9, [[TOPIC_ID, "orders", 0, -1, -1, ""]])
    with anomaly():
        history.books.offsets_answered("g", 9, [[TOPIC_ID, "orders", 0, 4, -1, ""]])


def test_a_deleted_group_keeps_no_offset() -> None:
    found = History()
    found.commit("", -1, 4)
    with anomaly():
        found.write(Tombstone(GroupChanged, ("g",)), sender=Sender(0, "", -1, False))
    found.write(Tombstone(OffsetCommitted, KEY), sender=Sender(0, "", -1, False))
    found.write(Tombstone(GroupChanged, ("g",)), sender=Sender(0, "", -1, False))


def cooperative(history: History, number: int, *members: MemberRecord, stable: bool = True) -> None:
    history.generation(number, *members, stable=stable, protocol="cooperative-sticky")


def test_a_partition_that_its_owner_has_to_give_back_first_has_none() -> None:
    history = History(partitions=2)
    cooperative(history, 1, keeper("a", (), 0, 1))
    cooperative(history, 2, keeper("a", (0, 1), 0), keeper("b", ()))
    cooperative(history, 3, keeper("a", (0,), 0), keeper("b", (), 1))
    with anomaly():
        cooperative(history, 4, keeper("a", (0,), 0), keeper("b", ()))


def test_a_partition_that_is_given_away_before_its_owner_gave_it_back() -> None:
    history = History()
    cooperative(history, 1, keeper("a", (), 0, 1))
    with anomaly():
        cooperative(history, 2, keeper("a", (0, 1), 0), keeper("b", (), 1))


def test_a_member_that_reads_on_beside_the_next_owner() -> None:
    history = History()
    first, second = keeper("a", ()), keeper("b", (), 0)
    cooperative(history, 1, replace(first, assignment=member("a", 0).assignment))
    history.books.claims(1, claim("a", 1, 0))
    history.books.joins(1, "a", {each.name: each.metadata for each in first.protocols})
    cooperative(history, 2, first, second)
    with anomaly():
        history.books.claims(2, claim("b", 2, 0))


def test_a_generation_that_leaves_a_partition_unread() -> None:
    found = History(partitions=2)
    found.generation(1, member("a"), stable=False)
    with anomaly():
        found.generation(1, member("a", 0))


def test_records_with_the_time_of_another_clock(history: History) -> None:
    history.now_ms += 1
    committed = OffsetCommitted(*KEY, offset=1, leader_epoch=-1, metadata="", committed_ms=history.now_ms)
    with anomaly():
        history.write(committed, sender=Sender(1, "a", 1, False))


def test_a_member_receives_a_generation_before_it_is_stored(history: History) -> None:
    history.books.generation_answered("g", 1, is_stable=True)
    with anomaly():
        history.books.generation_answered("g", 2, is_stable=False)
    history.generation(2, member("a"), member("b"), stable=False)
    history.books.generation_answered("g", 2, is_stable=False)
    with anomaly():
        history.books.generation_answered("g", 2, is_stable=True)


def test_offsets_that_members_read_stay_and_others_may_be_deleted(history: History) -> None:
    operator = Sender(0, "", -1, moved_back=False)
    topics = (JoinGroupProtocol("range", b"... orders ..."),)
    history.generation(2, *(replace(member(each, place), protocols=topics) for place, each in enumerate("ab")))
    history.commit("a", 2, 4)
    history.commit("a", 2, 5, key=ELSEWHERE_KEY)
    with anomaly():
        history.write(Tombstone(OffsetCommitted, KEY), sender=operator)
    with anomaly():
        history.write(Tombstone(OffsetCommitted, ELSEWHERE_KEY))  # its retention is not over
    history.now_ms += RETENTION_MS
    assert history.books.overdue(history.now_ms + EXPIRY_MS + 1) == [("g", 0, ELSE_ID)]
    history.write(Tombstone(OffsetCommitted, ELSEWHERE_KEY), sender=operator)


def test_a_reset_is_in_one_batch() -> None:
    books = GroupBooks()
    rows = [Row(["offset", "g", TOPIC_ID, TOPIC, number], None, 0, LIFE, 7, None) for number in range(2)]
    books.reset_decided(LIFE, 7, 2)
    books.sent(rows)
    with anomaly():
        books.sent(rows[:1])
