"""No exception, wherever it comes from, leaves a record without an outcome or its memory reserved."""

import time
from typing import Any

import pytest

from raylog.base.errors import DeliveryTimedOut, InvalidRecord, UnknownServerError
from raylog.client.producer import batch as batches
from raylog.client.producer.delivery import Delivery
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.producer import Producer
from raylog.storage.batch.records import encode_stamped
from tests.unit.client.toy_server import ToyCluster


class Trap:
    """Raises in place of a function as long as it is set."""

    def __init__(self, function: Any, error: Exception) -> None:
        self.function = function
        self.error: Exception | None = error

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.function(*args, **keywords)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return lambda *args, **keywords: self(owner, *args, **keywords)


def values(cluster: ToyCluster, partition: int = 0) -> list[bytes | None]:
    return [value for _, _, value in cluster.records("t", partition)]


def test_a_batch_that_cannot_be_encoded_fails_alone_and_frees_its_memory(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t", partitions=2)
    trap = Trap(encode_stamped, MemoryError("no memory for a body"))
    producer = Producer(**cluster.options, linger_ms=20)
    monkeypatch.setattr(batches, "encode_stamped", trap)
    failed = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(10)]
    for each in failed:
        error = each.exception(10)
        assert isinstance(error, InvalidRecord)
        assert "no memory for a body" in str(error)
        assert isinstance(error.__cause__, MemoryError)
    producer.flush(10)
    trap.error = None
    assert producer.send("t", b"later", partition=0).result(10).offset == 0
    assert producer.metrics()["record-error-total"] == 10
    assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
    producer.close()
    assert values(cluster) == [b"later"]


def test_a_producer_with_a_batch_that_cannot_be_encoded_closes_at_once(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    producer = Producer(**cluster.options, linger_ms=60_000)
    future = producer.send("t", b"x")
    monkeypatch.setattr(batches, "encode_stamped", Trap(None, ValueError("trap")))
    began_s = time.monotonic()
    producer.close()
    assert time.monotonic() - began_s < 10, "it waited for a batch that nothing will finish"
    assert isinstance(future.exception(0), InvalidRecord)


def test_batches_behind_a_hole_that_fail_to_encode_do_not_stop_the_line(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, [InvalidRecord.code])
        producer.send("t", b"hole").exception(10)
        trap = Trap(batches.Batch.encode_again, MemoryError("trap"))
        monkeypatch.setattr(batches.Batch, "encode_again", trap)
        assert isinstance(producer.send("t", b"1").exception(10), InvalidRecord)
        trap.error = None
        assert producer.send("t", b"2").result(10).offset == 1
    assert values(cluster) == [b"0", b"2"]


@pytest.mark.parametrize("name", ["_connect", "pump"])
def test_an_unexpected_error_of_a_partition_fails_its_records_alone(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cluster.create_topic("t", partitions=2)
    normal = getattr(Delivery, name)

    def fail_for_0(delivery: Delivery, *args: Any) -> Any:
        if delivery._queue.partition == 0:
            raise KeyError("a bug")
        return normal(delivery, *args)

    with Producer(**cluster.options) as producer:
        monkeypatch.setattr(Delivery, name, fail_for_0)
        bad, good = producer.send("t", b"x", partition=0), producer.send("t", b"y", partition=1)
        assert isinstance(bad.exception(10), UnknownServerError)
        assert good.result(10).offset == 0
        monkeypatch.setattr(Delivery, name, normal)
        assert producer.send("t", b"z", partition=0).result(10).offset == 0


def test_an_answer_without_an_offset_fails_the_records(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic("t")
    partition = cluster.partitions["t", 0]
    normal = partition.append
    with Producer(**cluster.options) as producer:
        cluster.do(lambda: monkeypatch.setattr(partition, "append", lambda _: {"no": "offset"}))
        assert isinstance(producer.send("t", b"x").exception(10), UnknownServerError)
        cluster.do(lambda: monkeypatch.setattr(partition, "append", normal))
        producer.send("t", b"y").result(10)


def test_what_was_stored_behind_a_late_batch_is_not_reported_as_late(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, delivery_timeout_ms=1500) as producer:
        producer.send("t", b"before").result(10)
        cluster.set_faults("t", 0, ["lose_reply"])
        late, stored = (producer.send_batch("t", [value], partition=0) for value in (b"late", b"stored"))
        stored._batches[0].deadline_s = late._batches[0].deadline_s  # both are looked at in the same pass
        assert isinstance(late.exception(10), DeliveryTimedOut)
        assert stored.result(10)[0].offset == 2


def test_an_error_that_many_records_share_does_not_grow_with_each_raise(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        cluster.set_faults("t", 0, [InvalidRecord.code])
        future = producer.send("t", b"x")

        def frames(future: SendFuture) -> int:
            with pytest.raises(InvalidRecord) as found:
                future.result(10)
            count, trace = 0, found.value.__traceback__
            while trace is not None:
                count, trace = count + 1, trace.tb_next
            return count

        assert frames(future) == frames(future)
