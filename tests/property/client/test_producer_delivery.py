"""The producer's promise, under faults chosen by hypothesis: each record stored once, in order, at the offset it says.

The toy cluster is real sockets and the storage engine's own checks of producers. Connections break before and after the
append, answers are lost or come twice, leaders move with and without what was not replicated, requests are refused.
"""

from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raylog.base.errors import InvalidRecord, NotEnoughReplicas, NotLeaderOrFollower, RaylogError
from raylog.client.producer.producer import Producer, SendFuture
from raylog.storage.batch.records import encode_batch, encode_stamped
from tests.unit.client.toy_server import ToyCluster

PARTITIONS = 2
REFUSE_FOR_GOOD = InvalidRecord.code
RETRIABLE = [NotLeaderOrFollower.code, NotEnoughReplicas.code]
FAULTS = ["store", "store", "cut_before", "cut_after", "cut_unreplicated", "duplicate_reply", "lose_reply", *RETRIABLE]

partitions = st.integers(0, PARTITIONS - 1)
sends = st.tuples(st.just("send"), partitions, st.integers(1, 25))
moves = st.tuples(st.just("move"), partitions, st.booleans())
others = st.tuples(st.sampled_from(["flush", "cut", "wait"]), partitions, st.just(0))
schedules = st.lists(st.one_of(sends, sends, sends, moves, others), min_size=1, max_size=25)
# Few lost answers: each one costs a request timeout.
faults = st.lists(st.sampled_from(FAULTS), max_size=12).filter(lambda chosen: chosen.count("lose_reply") <= 2)


def run(schedule: list[tuple[str, int, int]], plan: list[list[Any]], **options: Any) -> None:
    """Play a schedule, then compare what the futures say with what is stored."""
    sent: dict[int, list[tuple[bytes, SendFuture]]] = {number: [] for number in range(PARTITIONS)}
    with ToyCluster(brokers=2) as cluster:
        cluster.create_topic("t", PARTITIONS)
        for number, chosen in enumerate(plan):
            cluster.set_faults("t", number, chosen)
        small: dict[str, Any] = {"linger_ms": 0, "batch_size": 40, "max_request_size": 400, "request_timeout_ms": 150}
        with Producer(**cluster.options, **small, retry_backoff_ms=1, retry_backoff_max_ms=20, **options) as producer:
            for step, number, much in schedule:
                match step:
                    case "send":
                        for _ in range(much):
                            value = b"%d-%d" % (number, len(sent[number]))
                            sent[number].append((value, producer.send("t", value, partition=number)))
                    case "move":
                        cluster.move_leader("t", number, silently=bool(much))
                    case "cut":
                        cluster.cut_connections()
                    case "flush":
                        producer.flush(30)
                    case "wait" if sent[number]:
                        sent[number][-1][1].exception(30)
            producer.flush(30)
            assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
        for number, records in sent.items():
            check(records, cluster.records("t", number))


def check(sent: list[tuple[bytes, SendFuture]], stored: list[tuple[int, bytes | None, bytes | None]]) -> None:
    """Every record that succeeded is stored once, where its future says, in the order of sending; no other is."""
    outcomes = [(value, future.exception(0), future) for value, future in sent]
    succeeded = [value for value, error, _ in outcomes if error is None]
    assert [value for _, _, value in stored] == succeeded
    assert not [value for value, count in Counter(succeeded).items() if count > 1]
    places = {value: offset for offset, _, value in stored}
    for value, error, future in outcomes:
        if error is None:
            assert future.result(0).offset == places[value]
        else:
            assert isinstance(error, InvalidRecord), error


SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@SLOW
@given(schedules, st.tuples(faults, faults))
@example([("send", 0, 200), ("move", 0, 0), ("send", 0, 200), ("cut", 0, 0), ("send", 0, 50)], ([], []))
@example([("send", 0, 120)], (["store", "lose_reply", "store", "store", "cut_after", "cut_after"], []))
@example([("send", 0, 120), ("move", 0, 0), ("send", 0, 9)], (["cut_unreplicated"] * 6, []))
def test_each_record_is_stored_once_and_in_order(
    schedule: list[tuple[str, int, int]], plan: tuple[list[Any], list[Any]]
) -> None:
    run(schedule, list(plan))


@settings(SLOW, max_examples=30)
@given(schedules, st.lists(st.sampled_from([*FAULTS[:6], REFUSE_FOR_GOOD]), max_size=12))
@example([("send", 0, 120)], ["store", REFUSE_FOR_GOOD, "store", REFUSE_FOR_GOOD, "cut_after"])
def test_a_batch_that_is_refused_for_good_takes_nothing_else_with_it(
    schedule: list[tuple[str, int, int]], chosen: list[Any]
) -> None:
    run(schedule, [chosen, []])


@settings(SLOW, max_examples=10)
@given(schedules, st.lists(st.sampled_from(FAULTS[:6]), max_size=12), st.sampled_from(["gzip", "lz4", "zstd"]))
def test_compression_changes_nothing(schedule: list[tuple[str, int, int]], chosen: list[Any], codec: str) -> None:
    run(schedule, [chosen, []], compression_type=codec)


@settings(SLOW, max_examples=30)
@given(
    schedules,
    st.lists(st.sampled_from([*FAULTS[:6], REFUSE_FOR_GOOD]), max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=8),
)
@example([("send", 0, 120)], ["store", REFUSE_FOR_GOOD, "store"], [False, True, False, False, True])
@example([("send", 0, 9), ("flush", 0, 0), ("send", 0, 9), ("send", 1, 9)], [], [True])
def test_batches_that_cannot_be_encoded_take_nothing_else_with_them(
    schedule: list[tuple[str, int, int]], chosen: list[Any], failing: list[bool]
) -> None:
    """Neither at first nor again, under a higher epoch; `failing` says of each encoding in turn whether it fails."""
    turns = cycle(failing)

    def failing_at_times(encode: Callable[..., Any]) -> Callable[..., Any]:
        def encoded(*columns: Any, **options: Any) -> Any:
            if next(turns):
                raise MemoryError("by the test")
            return encode(*columns, **options)

        return encoded

    with pytest.MonkeyPatch.context() as patch:
        for name, encode in (("encode_stamped", encode_stamped), ("encode_batch", encode_batch)):
            patch.setattr(f"raylog.client.producer.batch.{name}", failing_at_times(encode))
        run(schedule, [chosen, []])


def test_the_checker_finds_a_producer_that_stores_twice() -> None:
    """Without idempotence an answer that is lost makes a duplicate: the check above must see it."""
    schedule = [("send", 0, 3), ("flush", 0, 0), ("send", 0, 3)]
    with pytest.raises(AssertionError):
        run(schedule, [["cut_after"], []], enable_idempotence=False)


def test_every_error_of_a_record_is_a_raylog_error() -> None:
    with ToyCluster() as cluster:
        cluster.create_topic("t")
        cluster.set_faults("t", 0, [-1])
        with Producer(**cluster.options) as producer:
            assert isinstance(producer.send("t", b"x").exception(10), RaylogError)
