"""A partition whose leader refuses to read it: the consumer goes on trying, and its log says so and why."""

import pytest

from raylog.base.errors import KafkaStorageError
from raylog.base.ids import TopicPartition
from raylog.client.consumer import fetcher
from raylog.client.consumer.consumer import Consumer
from raylog.rpc import Request
from tests.unit.client.consumer_support import fill, numbers, read
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

AT = TopicPartition("flights", 0)


def test_a_partition_that_is_not_read_is_named_with_the_reason(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, numbers(0, 5))
    answer, refused = ToyReplica._fetch, [0]

    async def refuse(replica: ToyReplica, request: Request) -> None:
        refused[0] += 1
        request.fail(KafkaStorageError("The log is damaged at offset 0."))

    monkeypatch.setattr(ToyReplica, "_fetch", refuse)
    with Consumer(**cluster.options, short_circuit_reads=False, retry_backoff_max_ms=5) as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        wait_for(lambda: consumer.poll(50) or caplog.messages, "the log names the partition")
        assert refused[0] > fetcher.FAILURES_TO_WARN
        wait_for(lambda: refused[0] > 5 * fetcher.FAILURES_TO_WARN, "it is tried again and again")
        (line,) = caplog.messages
        assert line == (
            "flights-0 is not read, and the consumer goes on trying: KafkaStorageError: The log is damaged at offset 0."
        )
        monkeypatch.setattr(ToyReplica, "_fetch", answer)
        assert [record.value for record in read(consumer, 5)] == numbers(0, 5)
