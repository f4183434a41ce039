"""The producer when leaders move, connections break and batches are given up. (At random: tests/property/client.)"""

import pytest

from raylog.base.errors import (
    DeliveryTimedOut,
    InvalidProducerEpoch,
    InvalidRecord,
    NotEnoughReplicas,
    UnknownServerError,
)
from raylog.client.producer import delivery
from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster

NOT_ENOUGH = NotEnoughReplicas.code


def values(cluster: ToyCluster) -> list[bytes | None]:
    return [value for _, _, value in cluster.records("t", 0)]


def epochs(cluster: ToyCluster) -> list[int]:
    return cluster.do(lambda: [header.producer_epoch for header, _ in cluster.partitions["t", 0].batches])


def test_records_follow_the_leader_and_nothing_unreplicated_is_missed(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, ["cut_unreplicated"])
        found = producer.send("t", b"1")
        cluster.move_leader("t", 0)
        assert found.result(10).offset == 1
        assert producer.metrics()["record-retry-total"] <= 3
    assert values(cluster) == [b"0", b"1"]


def test_an_answer_that_is_lost_costs_a_timeout_and_no_duplicate(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["lose_reply"])
    with Producer(**cluster.options, request_timeout_ms=100) as producer:
        assert producer.send("t", b"x").result(10).offset == 0
    assert values(cluster) == [b"x"]


def test_refusals_that_may_pass_are_repeated(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [NOT_ENOUGH] * 4)
    with Producer(**cluster.options, retry_backoff_ms=1) as producer:
        assert producer.send("t", b"x").result(10).offset == 0


def test_without_retries_the_first_refusal_is_final(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [NOT_ENOUGH])
    with Producer(**cluster.options, retries=0, enable_idempotence=False) as producer:
        assert isinstance(producer.send("t", b"x").exception(10), NotEnoughReplicas)


def test_a_late_record_fails_with_the_reason_and_leaves_no_gap(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(
        **cluster.options,
        delivery_timeout_ms=1_000,
        request_timeout_ms=100,
        retry_backoff_ms=5,
        retry_backoff_max_ms=10,
    ) as producer:
        producer.send("t", b"before").result(10)
        cluster.set_faults("t", 0, [NOT_ENOUGH] * 1000)
        error = producer.send("t", b"late").exception(10)
        assert isinstance(error, DeliveryTimedOut)
        assert "set to refuse" in str(error)
        cluster.do(cluster.partitions["t", 0].faults.clear)
        assert producer.send("t", b"after").result(10).offset == 1
    assert values(cluster) == [b"before", b"after"]
    assert epochs(cluster) == [0, 1]


def test_a_late_record_that_was_stored_after_all_needs_no_new_epoch(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, delivery_timeout_ms=1_000, request_timeout_ms=5_000) as producer:
        producer.send("t", b"before").result(10)
        cluster.set_faults("t", 0, ["lose_reply"])
        assert isinstance(producer.send("t", b"late").exception(10), DeliveryTimedOut)
        producer.send("t", b"after").result(10)
    assert values(cluster) == [b"before", b"late", b"after"]
    assert set(epochs(cluster)) == {0}


def test_a_refused_batch_fails_alone_and_the_next_starts_a_new_epoch(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, [InvalidRecord.code])
        assert isinstance(producer.send("t", b"1").exception(10), InvalidRecord)
        assert producer.send("t", b"2").result(10).offset == 1
    assert epochs(cluster) == [0, 1]


def test_a_used_up_epoch_is_followed_by_another_producer_id(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PRODUCER_EPOCH_MAX", 0)
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, [InvalidRecord.code])
        producer.send("t", b"1").exception(10)
        producer.send("t", b"2").result(10)
    ids = cluster.do(lambda: [header.producer_id for header, _ in cluster.partitions["t", 0].batches])
    assert ids == [1, 2]


def test_a_fenced_producer_fails_for_good(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        cluster.set_faults("t", 0, [InvalidProducerEpoch.code])
        assert isinstance(producer.send("t", b"x").exception(10), InvalidProducerEpoch)
        with pytest.raises(InvalidProducerEpoch):
            producer.send("t", b"y")


def test_an_unknown_error_of_the_server_fails_the_record_only(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [-1])
    with Producer(**cluster.options) as producer:
        assert isinstance(producer.send("t", b"x").exception(10), UnknownServerError)
        assert producer.send("t", b"y").result(10).offset == 0


def test_a_topic_that_is_deleted_and_created_again_takes_the_records(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"old").result(10)
        cluster.delete_topic("t")
        found = producer.send("t", b"new")
        cluster.create_topic("t")
        assert found.result(20).offset == 0
    assert values(cluster) == [b"new"]


def test_metadata_that_names_another_leader_ends_the_wait_for_the_old_one(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, ["hold"])
        found = producer.send("t", b"1")
        cluster.wait_held("t", 0)
        held = cluster.do(lambda: list(cluster.partitions["t", 0].held))  # the old leader no longer answers
        cluster.move_leader("t", 0, silently=True)
        producer._runtime.run(producer._engine.cluster.refresh(("t",), timeout_s=5), 10)
        assert found.result(10).offset == 1
        assert held


def test_a_leader_that_hangs_is_left_as_soon_as_another_is_elected(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, request_timeout_ms=60_000) as producer:
        producer.send("t", b"0").result(10)
        cluster.set_faults("t", 0, ["hold"])
        found = producer.send("t", b"1")
        cluster.wait_held("t", 0)
        held = cluster.do(lambda: list(cluster.partitions["t", 0].held))
        cluster.move_leader("t", 0, silently=True)
        assert found.result(10).offset == 1
        assert held
