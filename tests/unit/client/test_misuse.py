"""What users do by mistake: forks, wrong offsets, callbacks that end the process. Each has an error, none hangs."""

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from raylog.base.errors import ClientClosed, ConcurrentUse, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.cluster.connections import ConnectionPool
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.client.types import OffsetAndMetadata
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_server import SECRET, ToyCluster

HERE = TopicPartition("t", 0)


def _in_child(work: Callable[[], object], pipe: Connection) -> None:
    try:
        pipe.send(("returned", repr(work())))
    except BaseException as error:  # sent to the parent, which judges it
        pipe.send((type(error).__name__, str(error)))


def in_child(work: Callable[[], object]) -> tuple[str, str]:
    """What a call did in a forked child; fails when it hangs."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(work, theirs))
    child.start()
    try:
        assert ours.poll(15), "the call hangs in the child"
        found: tuple[str, str] = ours.recv()
        return found
    finally:
        child.kill()
        child.join(10)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_must_make_a_consumer_and_an_admin_of_its_own(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 10))
    with Consumer("t", **cluster.options, auto_offset_reset="earliest") as consumer, Admin(**cluster.options) as admin:
        assert len(consumer.poll(5_000, max_records=2)[HERE]) == 2  # and eight are buffered
        for work in (lambda: consumer.poll(0), lambda: next(consumer), lambda: consumer.position(HERE)):
            kind, message = in_child(work)
            assert (kind, "fork" in message) == (ClientClosed.__name__, True)
        kind, message = in_child(admin.list_topics)
        assert (kind, "before the fork" in message) == (ClientClosed.__name__, True)
        for close in (consumer.close, admin.close):
            assert in_child(close) == ("returned", "None")
        assert len(read(consumer, 8)) == 8


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (-1, ValueError),
        (2**63, ValueError),
        ("5", TypeError),
        (1.5, TypeError),
        (None, TypeError),
        (True, TypeError),
        (OffsetAndMetadata(-5), ValueError),
        (OffsetAndMetadata(5, None), TypeError),  # type: ignore[arg-type]
    ],
)
def test_an_offset_that_is_none_is_not_committed(cluster: ToyCluster, offset: Any, error: type[Exception]) -> None:
    coordinator = with_coordinator(cluster)
    cluster.create_topic("t")
    with Consumer(**cluster.options, group_id="g") as consumer:
        for commit in (consumer.commit, consumer.commit_async):
            with pytest.raises(error, match="The offset of t-0 must be"):
                commit({HERE: offset})
        consumer.commit({HERE: 4})
    assert cluster.do(lambda: [commit.offset for commit in coordinator.commits]) == [4]


def test_an_offset_of_a_partition_that_is_not_there_is_refused(cluster: ToyCluster) -> None:
    coordinator = with_coordinator(cluster)
    cluster.create_topic("t")
    with Consumer(**cluster.options, group_id="g") as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="Topic 't' has partitions 0 to 0, not 9"):
            consumer.commit({TopicPartition("t", 9): 1, HERE: 4})
        errors: list[Exception | None] = []
        done = threading.Event()

        def called(_: object, error: Exception | None) -> None:
            errors.append(error)
            done.set()

        consumer.commit_async({TopicPartition("t", 9): 1}, called)
        assert done.wait(15)
    assert isinstance(errors[0], UnknownTopicOrPartition)
    assert cluster.do(lambda: [(commit.key.partition, commit.offset) for commit in coordinator.commits]) == [(0, 4)]


def test_a_callback_that_would_end_the_process_ends_nothing(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        future = producer.send("t", b"x")
        future.add_done_callback(lambda _: sys.exit(3))
        assert future.result(10).offset == 0
        assert producer.send("t", b"y").result(10).offset == 1


def test_threads_iterating_over_one_consumer_are_refused_without_loss(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    for _ in range(10):
        fill(cluster, "t", 0, numbers(0, 500))
    found: list[int] = []
    refused: list[ConcurrentUse] = []
    others: list[BaseException] = []
    with Consumer("t", **cluster.options, auto_offset_reset="earliest", consumer_timeout_ms=1_000) as consumer:

        def iterate() -> None:
            while True:
                try:
                    found.append(next(consumer).offset)
                except ConcurrentUse as error:
                    refused.append(error)
                except StopIteration:
                    return
                except BaseException as error:  # shown by the test, which runs on another thread
                    others.append(error)
                    return

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=iterate, daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        finally:
            sys.setswitchinterval(interval)
    assert not others
    assert sorted(found) == list(range(5_000))
    assert all("one thread at a time" in str(error) for error in refused)


@pytest.mark.parametrize("partition", [None, "t", ("t",), ("t", "0"), ("t", None), ("t", -1), (None, 0), ("t", True)])
def test_what_is_no_partition_is_refused_where_it_is_given(cluster: ToyCluster, partition: Any) -> None:
    cluster.create_topic("t")
    with Consumer(**cluster.options, group_id="g") as consumer:
        with pytest.raises((TypeError, ValueError), match=r"partition|topic"):
            consumer.assign([partition])
        with pytest.raises((TypeError, ValueError), match=r"partition|topic"):
            consumer.commit({partition: 0})


def test_what_is_no_topic_or_no_offset_is_refused_where_it_is_given(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    wrong_topics: list[Any] = [[None], [7], [""], ["t", b"t"]]
    wrong_offsets: list[Any] = [1.5, "3", None, True]
    with Consumer(**cluster.options) as consumer:
        for topics in wrong_topics:
            with pytest.raises((TypeError, ValueError), match="topic"):
                consumer.subscribe(topics)
        consumer.assign([HERE])
        for offset in wrong_offsets:
            with pytest.raises(TypeError, match="offset"):
                consumer.seek(HERE, offset)


async def test_closing_a_connecting_client_ends_the_call_with_an_error() -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    try:
        pool = ConnectionPool(SECRET)
        call = asyncio.ensure_future(pool.get(server.sockets[0].getsockname(), 10))
        await asyncio.wait_for(arrived.wait(), 10)
        await pool.close()
        with pytest.raises(ClientClosed):
            await call
    finally:
        server.close()
        await server.wait_closed()
