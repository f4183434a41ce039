"""Transactions in a real Ray, with three brokers: outcomes, fencing, timeouts, and processes that are killed.

They run in file order, on the cluster that stays; each has a topic of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import raylog
from raylog.base.errors import (
    CommitFailed,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
    TransactionAbortable,
    TransactionAborted,
)
from raylog.base.ids import TopicPartition
from raylog.storage.batch.header import TRANSACTIONAL_BIT, BatchMeta
from raylog.storage.batch.records import encode_batch
from tests.cluster.ray_support import Wire, actor_names, call_actor, kill
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

COORDINATOR = "transaction-coordinator-0"


def transactional(name: str, **options: Any) -> raylog.Producer:
    """A producer of this transactional id, ready for its first transaction."""
    producer = raylog.Producer(transactional_id=name, **options)
    try:
        producer.init_transactions()
    except BaseException:
        producer.close()
        raise
    return producer


def read(topic: str, isolation_level: Any = "read_committed", partitions: int = 2) -> list[list[bytes]]:
    """All values of each partition, up to the end that such a reader sees."""
    where = [TopicPartition(topic, number) for number in range(partitions)]
    found: dict[TopicPartition, list[bytes]] = {each: [] for each in where}
    with raylog.Consumer(isolation_level=isolation_level, auto_offset_reset="earliest") as consumer:
        consumer.assign(where)
        ends = consumer.end_offsets(where)
        deadline_s = time.monotonic() + 30
        while any(consumer.position(each) < end for each, end in ends.items()):
            assert time.monotonic() < deadline_s, f"stands at {[consumer.position(each) for each in where]} of {ends}"
            for each, records in consumer.poll(timeout_ms=500).items():
                found[each] += [record.value for record in records]
    return list(found.values())


def completed(admin: raylog.Admin, name: str) -> bool:
    """Whether the last transaction of an id has its end everywhere."""
    return admin.describe_transactions([name])[name].state in ("CompleteCommit", "CompleteAbort", "Empty")


def abort_by_error(producer: raylog.Producer, topic: str, value: bytes) -> None:
    """Send a record in a transaction whose block raises."""
    with producer.transaction():
        producer.send(topic, value, partition=0).result(30)
        raise ZeroDivisionError


def test_readers_of_committed_records_see_whole_transactions(topic: str, admin: raylog.Admin) -> None:
    with transactional(topic) as producer:
        with producer.transaction():
            for number in range(100):
                producer.send(topic, b"%d" % number, partition=number % 2)
        with pytest.raises(ZeroDivisionError):
            abort_by_error(producer, topic, b"aborted")
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(30)
        wait_for(lambda: sum(map(len, read(topic, "read_uncommitted"))) == 102, "everything is stored")
        even, odd = ([b"%d" % number for number in range(start, 100, 2)] for start in (0, 1))
        assert read(topic) == [even, odd]
        assert read(topic, "read_uncommitted") == [[*even, b"aborted"], [*odd, b"open"]]
        [listed] = [each for each in admin.list_transactions(["Ongoing"]) if each.transactional_id == topic]
        assert listed.producer_id == admin.describe_transactions([topic])[topic].producer_id
        described = admin.describe_transactions([topic])[topic]
        assert (described.state, described.partitions) == ("Ongoing", (TopicPartition(topic, 1),))
        [known] = admin.describe_producers([(topic, 1)])[TopicPartition(topic, 1)]
        assert (known.producer_id, known.txn_start_offset) == (listed.producer_id, 51)
        producer.commit_transaction()
        wait_for(lambda: completed(admin, topic), "the transaction has its end everywhere")
        assert read(topic) == [even, [*odd, b"open"]]


def test_the_next_transaction_waits_for_the_one_before(topic: str, admin: raylog.Admin) -> None:
    with transactional(topic) as producer:
        for number in range(50):
            with producer.transaction():
                producer.send(topic, b"%d" % number, partition=number % 2)
    wait_for(lambda: completed(admin, topic), "the last one has its end everywhere")
    assert read(topic) == [[b"%d" % number for number in range(start, 50, 2)] for start in (0, 1)]


def test_a_second_producer_of_an_id_fences_the_first(topic: str, admin: raylog.Admin) -> None:
    with transactional(topic) as first:
        first.begin_transaction()
        first.send(topic, b"of the first", partition=0).result(30)
        with transactional(topic) as second:
            assert read(topic) == [[], []], "its transaction was aborted, and nothing holds readers back"
            with second.transaction():
                second.send(topic, b"of the second", partition=0)
            late = first.send(topic, b"late", partition=0)
            assert isinstance(late.exception(30), RaylogError)
            with pytest.raises(TransactionAbortable):
                first.commit_transaction()
            with pytest.raises(ProducerFenced, match="another one has this transactional_id"):
                first.abort_transaction()
            with pytest.raises(ProducerFenced):
                first.begin_transaction()
    wait_for(lambda: completed(admin, topic), "the transaction has its end everywhere")
    assert read(topic)[0] == [b"of the second"]


def test_a_transaction_that_takes_too_long_is_aborted(topic: str, admin: raylog.Admin) -> None:
    too_long = raylog.Producer(transactional_id=topic, transaction_timeout_ms=2**31 - 1)
    with too_long, pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
        too_long.init_transactions()
    with transactional(topic, transaction_timeout_ms=500) as producer:
        producer.begin_transaction()
        producer.send(topic, b"slow", partition=0).result(30)
        wait_for(lambda: admin.describe_transactions([topic])[topic].state == "CompleteAbort", "it is aborted")
        with pytest.raises(ProducerFenced, match="transaction_timeout_ms=500"):
            producer.commit_transaction()
    assert read(topic) == [[], []]


def test_an_administrator_fences_and_aborts(topic: str, admin: raylog.Admin) -> None:
    with transactional(topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"a", partition=0).result(30)
        assert admin.find_hanging_transactions([topic], longer_than_ms=0) == [], "a coordinator has it"
        admin.fence_producers([topic])
        wait_for(lambda: completed(admin, topic), "it is aborted")
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    with transactional(topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"b", partition=1).result(30)
        [known] = admin.describe_producers([(topic, 1)])[TopicPartition(topic, 1)]
        admin.abort_transaction((topic, 1), known.producer_id)
        with pytest.raises(InvalidTxnState, match="no open transaction"):
            admin.abort_transaction((topic, 1), known.producer_id)
        assert read(topic) == [[], []]


def test_a_transaction_that_no_coordinator_knows_is_refused(
    topic: str, three_brokers: raylog.Cluster, admin: raylog.Admin
) -> None:
    wire = Wire(three_brokers.secret())
    try:
        admin.wake_partitions(topic)
        wire.wait_whole(topic, 2)
        _, _, epoch, host, port, *_ = wire.look(topic, 0)
        topic_id = admin.describe_topic(topic).topic_id
        meta = BatchMeta(producer_id=987_654, producer_epoch=4, base_sequence=0, attributes=TRANSACTIONAL_BIT)
        batch = encode_batch(None, [b"left open"], [1_000], None, meta)
        with pytest.raises(InvalidTxnState):
            wire.run(wire.call((host, port), "produce", [topic_id, 0, epoch, -1, 5000, "nobody"], batch))
    finally:
        wire.close()
    with raylog.Producer() as producer:
        producer.send(topic, b"not behind it", partition=0)
    assert read(topic) == [[b"not behind it"], []]
    assert admin.find_hanging_transactions([topic]) == []


def test_offsets_move_with_their_transaction(topic: str, admin: raylog.Admin) -> None:
    source, target = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with raylog.Producer() as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, partition=0)
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with transactional(topic) as producer:
        for round_ in range(4):  # each a new consumer, which starts where the last committed one has ended
            with raylog.Consumer(group_id=topic, enable_auto_commit=False, **reading) as consumer:
                consumer.assign([source])
                records = consumer.consume(10, timeout=30)
                producer.begin_transaction()
                for record in records:
                    producer.send(topic, b"seen " + record.value, partition=target.partition)
                offsets = {source: records[-1].offset + 1}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                if round_ == 1:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        with raylog.Consumer(group_id=topic, **reading) as consumer:
            assert consumer.committed(source) == 30
    wait_for(lambda: completed(admin, topic), "the transaction has its end everywhere")
    assert read(topic)[1] == [b"seen %d" % number for number in range(30)]


def test_offsets_of_a_member_that_lost_its_partitions_are_refused(topic: str) -> None:
    options: dict[str, Any] = {"group_id": topic, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with transactional(topic) as producer, raylog.Consumer(topic, **options) as first:
        wait_for(lambda: first.poll(timeout_ms=100) == {} and first.assignment() != set(), "it has its partitions")
        stale = first.group_metadata()
        with raylog.Consumer(topic, **options) as second:

            def shared() -> bool:
                first.poll(timeout_ms=50)
                second.poll(timeout_ms=50)
                return len(first.assignment()) == len(second.assignment()) == 1

            wait_for(shared, "the second member has a partition")
            (lost,), (kept,) = second.assignment(), first.assignment()
            producer.begin_transaction()
            producer.send(topic, b"result", partition=0).result(30)
            with pytest.raises(CommitFailed, match="has lost its partitions"):
                producer.send_offsets_to_transaction({lost: 7}, stale)
            producer.abort_transaction()
            with producer.transaction():
                producer.send_offsets_to_transaction({kept: 9}, first.group_metadata())
        wait_for(lambda: first.committed(kept) == 9, "the committed offset is that of the member")


HEIR = """
import sys, raylog
from raylog.client.types import PreparedTxnState
name, bootstrap, secret, wanted = sys.argv[1:]
with raylog.Producer(
    bootstrap=bootstrap, secret=secret, transactional_id=name, transaction_two_phase_commit_enable=True
) as heir:
    kept = heir.init_transactions(keep_prepared_txn=True)
    print(kept == PreparedTxnState.parse(wanted), heir.complete_transaction(PreparedTxnState.parse(wanted)))
"""


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_prepared_transaction_is_handed_over(
    is_committed: bool, three_brokers: raylog.Cluster, admin: raylog.Admin
) -> None:
    topic = f"prepared-{is_committed}"
    admin.create_topic(topic, partitions=2, replication_factor=3)
    with transactional(topic, transaction_two_phase_commit_enable=True) as producer:
        producer.begin_transaction()
        producer.send(topic, b"prepared", partition=0)
        prepared = producer.prepare_transaction()
    assert admin.describe_transactions([topic])[topic].timeout_ms is None
    assert read(topic) == [[], []]
    wanted = str(prepared) if is_committed else "1:1"
    host, port = call_actor("broker-1", "endpoint")
    arguments = [topic, f"{host}:{port}", three_brokers.secret(), wanted]
    heir = subprocess.run(
        [sys.executable, "-c", HEIR, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert heir.stdout.split() == [str(is_committed)] * 2, heir.stderr
    wait_for(lambda: completed(admin, topic), "it has its end everywhere")
    assert read(topic) == [[b"prepared"] if is_committed else [], []]


def test_the_coordinator_and_leaders_are_killed_amid_transactions(topic: str, admin: raylog.Admin) -> None:
    kept: list[bytes] = []
    stop = threading.Event()
    durations_s: list[float] = []

    def work() -> None:
        with transactional(topic) as producer:
            number = 0
            while not stop.is_set():
                number += 1
                began_s = time.monotonic()
                producer.begin_transaction()
                try:
                    for letter in b"abcdef":
                        producer.send(topic, b"%d%c" % (number, letter), partition=0 if letter < 100 else 1)
                    if number % 3:
                        producer.commit_transaction()
                        kept.extend(b"%d%c" % (number, letter) for letter in b"abcdef")
                    else:
                        producer.abort_transaction()
                except (TransactionAbortable, TransactionAborted):
                    producer.abort_transaction()
                durations_s.append(time.monotonic() - began_s)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for round_ in range(3):
            wait_for(lambda: len(durations_s) >= 5, "transactions go on")
            pid = call_actor(COORDINATOR, "pid")
            kill(pid)
            wait_for(lambda pid=pid: call_actor(COORDINATOR, "pid") != pid, "it is restarted")  # type: ignore[misc]
            durations_s.clear()
            wait_for(lambda: len(durations_s) >= 5, "transactions go on behind the coordinator's restart")
            leader = admin.describe_topic(topic).partitions[round_ % 2].leader
            prefix = f"replica:{topic}-{round_ % 2}:broker-{leader}"
            [name] = [each for each in actor_names() if each.startswith(prefix)]
            kill(call_actor(name, "status")["pid"])
            durations_s.clear()
    finally:
        stop.set()
        worker.join(120)
    assert not worker.is_alive()
    assert len(kept) >= 60
    wait_for(lambda: completed(admin, topic), "the last one has its end everywhere")
    assert sorted(value for values in read(topic) for value in values) == sorted(kept)


def test_a_commit_takes_milliseconds(topic: str, tmp_path: Path) -> None:
    durations_ms = []
    with transactional(topic) as producer:
        for number in range(60):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0).result(30)
            began_s = time.monotonic()
            producer.commit_transaction()
            durations_ms.append((time.monotonic() - began_s) * 1000)
    print(f"commits: median {statistics.median(durations_ms):.1f} ms, longest {max(durations_ms):.1f} ms")
    assert statistics.median(durations_ms) < 200, "no round of retries is in the way"
