"""A consumer of committed records (`isolation_level`): what it sees, where its log ends, and its lag."""

from itertools import count
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig, UnstableOffsetCommit
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.types import OffsetAndTimestamp
from raylog.protocol.groups import OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResult
from raylog.rpc import Request
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.records import BatchMeta
from tests.unit.client.consumer_support import fill, offsets, read
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("flights", 0)


class Flights:
    """A topic of one partition, and producers with transactions in it."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self._epochs = {producer: count() for producer in (1, 2)}
        self._now = dict.fromkeys(self._epochs, -1)
        self._sequences = dict.fromkeys(self._epochs, 0)
        cluster.create_topic("flights")

    def write(self, *values: bytes, producer: int = 0) -> None:
        """Append a batch; of a producer other than 0 in its transaction."""
        if not producer:
            fill(self.cluster, "flights", 0, values)
            return
        if self._now[producer] < 0:
            self._now[producer], self._sequences[producer] = next(self._epochs[producer]), 0
        sequence = self._sequences[producer]
        self._sequences[producer] = sequence + len(values)
        meta = BatchMeta(producer, self._now[producer], sequence, attributes=TRANSACTIONAL_BIT)
        fill(self.cluster, "flights", 0, values, meta=meta)

    def end(self, producer: int, *, committed: bool) -> None:
        """Write the marker."""
        epoch, self._now[producer] = self._now[producer] + 1, -1
        one = self.cluster.partitions["flights", 0]
        self.cluster.do(lambda: one.end_transaction(producer, epoch, committed=committed))

    def consumer(self, level: str = "read_committed", **options: object) -> Consumer:
        """Return a consumer that begins at the beginning."""
        wanted: dict[str, object] = {"auto_offset_reset": "earliest", "isolation_level": level}
        return Consumer("flights", **{**wanted, **self.cluster.options, **options})


@pytest.fixture
def flights(cluster: ToyCluster) -> Flights:
    """Offsets 0 plain, 1 and 2 aborted with marker 3, 4 committed with marker 5, 6 open, 7 plain."""
    found = Flights(cluster)
    found.write(b"plain")
    found.write(b"lost", b"lost too", producer=1)
    found.end(1, committed=False)
    found.write(b"kept", producer=2)
    found.end(2, committed=True)
    found.write(b"open", producer=1)
    found.write(b"behind")
    return found


def test_a_level_that_is_not_known_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="read_committed"):
        Consumer("flights", isolation_level="serializable")  # type: ignore[arg-type]


def test_a_reader_of_everything_sees_open_and_aborted_records(flights: Flights) -> None:
    with flights.consumer("read_uncommitted") as consumer:
        assert offsets(read(consumer, 6)) == [0, 1, 2, 4, 6, 7]


def test_nothing_aborted_and_nothing_behind_an_open_transaction_is_seen(flights: Flights) -> None:
    with flights.consumer() as consumer:
        assert [record.value for record in read(consumer, 2)] == [b"plain", b"kept"]
        assert consumer.poll(100) == {}
        assert consumer.position(HERE) == 6


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_transaction_shows_what_it_had_held_back(flights: Flights, committed: bool) -> None:
    with flights.consumer() as consumer:
        read(consumer, 2)
        flights.end(1, committed=committed)
        wanted = [b"open", b"behind"] if committed else [b"behind"]
        assert [record.value for record in read(consumer, len(wanted))] == wanted
        wait_for(lambda: consumer.poll(20) == {} and consumer.position(HERE) == 9, "the marker was not passed")


def test_columns_hold_committed_records_only(flights: Flights) -> None:
    with flights.consumer() as consumer:
        found = consumer.consume_batch(2, timeout=5)
        assert (found.offsets, list(found.values)) == ([0, 4], [b"plain", b"kept"])
        table = found.to_arrow()
        assert table.column("offset").to_pylist() == [0, 4]


def test_the_log_ends_where_the_first_open_transaction_begins(flights: Flights) -> None:
    with flights.consumer() as consumer, flights.consumer("read_uncommitted") as other:
        assert consumer.end_offsets([HERE]) == {HERE: 6}
        assert other.end_offsets([HERE]) == {HERE: 8}
        flights.end(1, committed=True)
        assert consumer.end_offsets([HERE]) == {HERE: 9}


def test_the_latest_position_is_not_behind_an_open_transaction(flights: Flights) -> None:
    with flights.consumer(auto_offset_reset="latest") as consumer:
        wait_for(lambda: consumer.poll(20) == {} and consumer.assignment(), "nothing was assigned")
        assert consumer.position(HERE) == 6
        consumer.seek_to_beginning(HERE)
        consumer.seek_to_end(HERE)
        assert consumer.position(HERE) == 6
        flights.end(1, committed=True)
        assert offsets(read(consumer, 2)) == [6, 7]


def test_a_time_is_looked_up_below_the_last_stable_offset(flights: Flights) -> None:
    with flights.consumer() as consumer, flights.consumer("read_uncommitted") as other:
        assert consumer.offsets_for_times({HERE: 4}) == {HERE: OffsetAndTimestamp(4, 4, 0)}
        assert consumer.offsets_for_times({HERE: 6}) == {HERE: None}
        assert other.offsets_for_times({HERE: 6}) == {HERE: OffsetAndTimestamp(6, 6, 0)}


def test_the_lag_counts_what_can_be_read(flights: Flights) -> None:
    with flights.consumer() as consumer, flights.consumer("read_uncommitted") as other:
        read(consumer, 2)
        read(other, 4)
        wait_for(lambda: consumer.poll(20) == {} and consumer.current_lag(HERE) == 0, "the consumer is not at its end")
        assert consumer.highwater(HERE) == 8
        assert other.current_lag(HERE) == 8 - other.position(HERE)


def test_records_of_an_aborted_transaction_are_hidden_in_small_fetches(flights: Flights) -> None:
    """Each answer has one batch, and names the transactions in it again."""
    with flights.consumer(max_partition_fetch_bytes=1) as consumer:
        assert offsets(read(consumer, 2)) == [0, 4]


def test_a_position_inside_an_aborted_transaction_shows_none_of_it(flights: Flights) -> None:
    with flights.consumer() as consumer:
        read(consumer, 1)
        consumer.seek(HERE, 2)
        assert offsets(read(consumer, 1)) == [4]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_offsets_that_a_transaction_may_move_are_waited_for(flights: Flights, level: Any) -> None:
    """As Kafka's consumers: the fetch requires stable offsets, and is repeated while some are pending."""
    fetches: list[OffsetFetchRequest] = []

    def refuse_twice(request: Request) -> None:
        fetches.append(OFFSET_FETCH.read_request(request.args))
        if len(fetches) < 3:
            request.fail(UnstableOffsetCommit())
        else:
            wanted = fetches[0].partitions or ()
            request.reply([OffsetFetchResult(wanted[0].topic_id, "flights", 0, 4, -1, "")])

    flights.cluster.extra_methods["offset_fetch"] = refuse_twice
    with Consumer(group_id="g", isolation_level=level, **flights.cluster.options) as consumer:
        assert consumer.committed(HERE) == 4
    assert [fetch.require_stable for fetch in fetches] == [True] * 3
