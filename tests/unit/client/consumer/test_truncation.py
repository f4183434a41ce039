"""What a consumer does when records that it has read are no longer in the partition (KIP-320)."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from raylog import LogTruncation
from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.consumer.truncation import has_what_was_read, must_compare
from raylog.client.reading.decode import BatchOpener
from raylog.client.types import OffsetAndMetadata
from raylog.rpc import Connection, Reply
from raylog.storage.batch.header import stamp
from raylog.storage.batch.records import encode_batch
from tests.unit.client.consumer_support import fill, numbers, offsets, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

FLIGHTS = TopicPartition("flights", 0)
QUERY = "offset_for_leader_epoch"


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=3) as cluster:
        cluster.create_topic("flights", replication_factor=3)
        yield cluster


def elect_uncleanly(cluster: ToyCluster, end: int, after: int = 0) -> None:
    """Make a replica leader whose log ends at `end`, and store `after` new records."""

    def elect() -> None:
        one = cluster.partitions[FLIGHTS]
        one.lose(end)
        cluster._move_leader(one, None, silently=False)

    cluster.do(elect)
    for each in range(after):
        fill(cluster, *FLIGHTS, [b"new %d" % each])


def old_and_new(cluster: ToyCluster) -> None:
    """Ten batches of the first epoch."""
    for value in numbers(0, 10):
        fill(cluster, *FLIGHTS, [value])


def test_after_two_unclean_elections_no_record_of_the_log_is_skipped(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        read(consumer, 10)
        other = cluster.partitions[FLIGHTS].batches[:]  # the log of a replica that is away from now on
        elect_uncleanly(cluster, 5, after=8)
        read(consumer, 8)

        def elect_the_other() -> None:
            one = cluster.partitions[FLIGHTS]
            one.batches, one.high_watermark = [(header, batch) for header, batch in other], 10
            one.leader_epoch = 2
            cluster._move_leader(one, None, silently=False)

        cluster.do(elect_the_other)
        found = read(consumer, 5)
    assert [record.value for record in found] == numbers(5, 10)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_reading_goes_on_where_the_histories_part(cluster: ToyCluster, policy: Any) -> None:
    old_and_new(cluster)
    with Consumer(auto_offset_reset=policy, **cluster.options) as consumer:
        consumer.assign([FLIGHTS])
        consumer.seek(FLIGHTS, 0)
        assert len(read(consumer, 10)) == 10
        elect_uncleanly(cluster, 5, after=8)
        found = read(consumer, 8)
    assert offsets(found) == list(range(5, 13)), "not from 10 on, in the middle of what it has never seen"
    assert [record.value for record in found] == [b"new %d" % each for each in range(8)]


def test_a_log_that_became_shorter_is_read_on_from_its_end(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        read(consumer, 10)
        elect_uncleanly(cluster, 7)
        wait_for(lambda: consumer.poll(50) == {} and consumer.position(FLIGHTS) == 7, "it does not go back to 7")
        fill(cluster, *FLIGHTS, [b"next"])
        assert [(record.offset, record.value) for record in read(consumer, 1)] == [(7, b"next")]


def test_without_a_policy_the_user_learns_both_offsets_and_may_go_on(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer(auto_offset_reset="none", **cluster.options) as consumer:
        consumer.assign([FLIGHTS])
        consumer.seek(FLIGHTS, 0)
        read(consumer, 10)
        elect_uncleanly(cluster, 5, after=8)
        with pytest.raises(LogTruncation, match="from offset 5 on") as raised:
            read(consumer, 1)
        assert (raised.value.details["position"], raised.value.details["divergent_offset"]) == (10, 5)
        with pytest.raises(LogTruncation):
            read(consumer, 1)
        consumer.seek(FLIGHTS, 5)
        assert offsets(read(consumer, 8)) == list(range(5, 13))


def test_a_clean_change_of_leader_costs_one_question_and_no_record(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        found = read(consumer, 10)
        assert QUERY not in cluster.requests_seen, "a first position has nothing to be compared"
        for turn in range(1, 4):
            cluster.move_leader(*FLIGHTS)
            fill(cluster, *FLIGHTS, [b"more"])
            found += read(consumer, 1)
            assert cluster.requests_seen.count(QUERY) == turn
    assert offsets(found) == list(range(13))


def test_what_is_buffered_comes_first_and_the_parting_is_met_behind_it(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer("flights", auto_offset_reset="earliest", max_poll_records=2, **cluster.options) as consumer:
        found = read(consumer, 2)
        elect_uncleanly(cluster, 5, after=8)
        while len(found) < 20 and (not found or found[-1].offset < 12):
            found += read(consumer, 1)
    assert [record.value for record in found[-8:]] == [b"new %d" % each for each in range(8)]
    assert offsets(found[-8:]) == list(range(5, 13))


def test_a_seek_is_the_users_own_word(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    with Consumer(auto_offset_reset="none", **cluster.options) as consumer:
        consumer.assign([FLIGHTS])
        consumer.seek(FLIGHTS, 0)
        read(consumer, 10)
        elect_uncleanly(cluster, 5, after=8)
        consumer.seek(FLIGHTS, 11)
        assert offsets(read(consumer, 2)) == [11, 12]


def test_a_committed_offset_knows_its_epoch(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    old_and_new(cluster)
    options = {"group_id": "board", "enable_auto_commit": False, "auto_offset_reset": "earliest", **cluster.options}
    with Consumer(**options) as consumer:
        consumer.assign([FLIGHTS])
        read(consumer, 10)
        consumer.commit()
    elect_uncleanly(cluster, 5, after=8)
    with Consumer(**options) as consumer:
        consumer.assign([FLIGHTS])
        assert offsets(read(consumer, 8)) == list(range(5, 13))
        consumer.commit({FLIGHTS: OffsetAndMetadata(11)})
    with Consumer(**options) as consumer:
        consumer.assign([FLIGHTS])
        assert offsets(read(consumer, 2)) == [11, 12], "a commit by hand without an epoch is taken at its word"


def test_a_leader_of_the_first_release_is_read_as_before(cluster: ToyCluster) -> None:
    old_and_new(cluster)
    cluster.compares_epochs = False
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        read(consumer, 10)
        cluster.move_leader(*FLIGHTS)
        fill(cluster, *FLIGHTS, [b"more"])
        assert offsets(read(consumer, 1)) == [10]


def read_up_to(offset: int, epoch: int) -> PartitionState:
    """A position behind a record of this leader epoch."""
    state = PartitionState(FLIGHTS, BatchOpener(FLIGHTS), Start.POLICY)
    state.move_to(offset, epoch)
    return state


async def compared(
    state: PartitionState, epoch: int, end: int, meanwhile: Callable[[], object] = lambda: None
) -> tuple[bool, object]:
    """Compare with the leader of epoch 7, which answers this; whether it has all, and where the histories diverge."""

    class Leader:
        async def call(self, method: str, request: Any, *, timeout_s: float) -> Reply:
            assert (method, request.partition) == (QUERY, 0)
            meanwhile()
            return Reply([epoch, end, 0], memoryview(b""))

    leader = PartitionInfo(0, 1, 7, "h", 9, (1,), (1,))
    has_all = await has_what_was_read(state, leader, cast(Connection, Leader()), 1.0)
    try:
        state.take(1)
    except LogTruncation as error:
        return has_all, error.details["divergent_offset"]
    return has_all, None


@pytest.mark.parametrize(
    ("epoch", "end", "outcome"),
    [
        (3, 10, (True, None)),
        (3, 9, (False, 9)),
        (3, 4, (False, 4)),
        (2, 12, (False, 9)),  # no record of epoch 3: the one before the position is another
        (2, 6, (False, 6)),
    ],
)
async def test_a_leader_has_what_was_read_if_its_epoch_ends_behind_it(
    epoch: int, end: int, outcome: tuple[bool, object]
) -> None:
    assert await compared(read_up_to(10, 3), epoch, end) == outcome


async def test_a_seek_while_leaders_are_compared_makes_the_answer_void() -> None:
    state = read_up_to(10, 3)
    assert await compared(state, 2, 4, lambda: state.move_to(2)) == (False, None)
    assert state.compared_epoch < 7


def test_each_new_leader_epoch_is_compared_once() -> None:
    state = read_up_to(10, 3)
    state.compared_epoch = 6
    assert [must_compare(state, epoch) for epoch in (5, 6, 7)] == [False, False, True]


def test_without_anything_read_there_is_nothing_to_compare() -> None:
    state = read_up_to(0, -1)
    assert not must_compare(state, 7)
    state = read_up_to(0, -1)
    state.add(state.session, memoryview(encode_batch(None, [b"v"], [1])))
    assert must_compare(state, 7)


@pytest.mark.parametrize("damaged", [-1, 8, 2**24])
def test_an_epoch_that_its_leader_cannot_have_written_is_unknown(damaged: int) -> None:
    state = read_up_to(10, 3)
    state.compared_epoch = 7
    batch = bytearray(encode_batch(None, [b"v"], [1]))
    stamp(batch, 0, 10, damaged)
    state.add(state.session, memoryview(bytes(batch)))
    assert [record.offset for record in state.take(1)] == [10]
    assert state.epochs.latest == -1, "a consumer would wait for a leader of that epoch"
