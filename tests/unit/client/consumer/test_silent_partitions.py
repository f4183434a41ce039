"""Fetches at the end of a silent partition: they wait longer and longer, so that the leader's doze is seldom ended."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.stream import LONG_WAIT_MS, FetchStream, wait_ms
from raylog.protocol.replica import FETCH, FetchReply
from raylog.rpc import Request
from tests.unit.client.consumer_support import fill, read, with_coordinator
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

AT = TopicPartition("flights", 0)
GROWING = [500, 1_000, 2_000, 4_000, 8_000, 16_000, LONG_WAIT_MS]


class Silence:
    """The time of fetches passes at once, until one would wait for `parks_at_ms`: that one waits in earnest."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waits_ms: list[int] = []
        """How long the fetches were to wait."""
        self.parks_at_ms = LONG_WAIT_MS
        self.parked: list[Request] = []
        self.hangs = False
        self._answer = ToyReplica._fetch
        patch.setattr(ToyReplica, "_fetch", lambda replica, request: self._fetch(replica, request))

    async def _fetch(self, replica: ToyReplica, request: Request) -> None:
        wanted, one = FETCH.read_request(request.args), replica.partition
        self.waits_ms.append(wanted.max_wait_ms)
        if self.hangs:
            self.parked.append(request)
        elif wanted.fetch_offset < one.high_watermark or wanted.max_wait_ms >= self.parks_at_ms:
            self.parked.append(request)
            await self._answer(replica, request)
        else:
            request.reply(FetchReply(one.high_watermark, one.last_stable_offset, one.log_start, ()), [])

    def is_at(self, wait_ms: int) -> bool:
        """Whether the last fetch waits for so long."""
        return bool(self.waits_ms) and self.waits_ms[-1] == wait_ms


@pytest.fixture
def silence(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> Silence:
    cluster.create_topic("flights", replication_factor=2)
    return Silence(monkeypatch)


@pytest.fixture
def consumer(cluster: ToyCluster, silence: Silence) -> Iterator[Consumer]:
    with Consumer(**cluster.options) as consumer:
        yield consumer


def until_long(consumer: Consumer, silence: Silence) -> None:
    wait_for(lambda: consumer.poll(10) == {} and silence.is_at(LONG_WAIT_MS), "a fetch waits for long")


def at_the_end(consumer: Consumer, silence: Silence) -> None:
    consumer.assign([AT])
    consumer.seek(AT, 0)
    until_long(consumer, silence)


def took_s(action: Any) -> float:
    began_s = time.monotonic()
    action()
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("last_ms", "options", "expected_ms"),
    [
        (None, {}, 500),
        (500, {}, 1_000),
        (16_000, {}, LONG_WAIT_MS),
        (LONG_WAIT_MS, {}, LONG_WAIT_MS),
        (500, {"fetch_min_bytes": 0}, 1_000),
        (500, {"fetch_min_bytes": 2}, 500),
        (0, {"fetch_max_wait_ms": 0}, 0),
        (60_000, {"fetch_max_wait_ms": 60_000}, 60_000),
    ],
)
def test_an_empty_answer_doubles_the_wait(last_ms: int | None, options: dict[str, Any], expected_ms: int) -> None:
    config = ConsumerConfig(**options)
    assert wait_ms(last_ms, config, is_asleep=False, has_records=False) == expected_ms
    assert wait_ms(last_ms, config, is_asleep=False, has_records=True) == config.fetch_max_wait_ms


def test_a_consumer_at_the_end_comes_back_less_and_less_often(consumer: Consumer, silence: Silence) -> None:
    at_the_end(consumer, silence)
    assert silence.waits_ms == GROWING


def test_records_come_at_once_and_start_the_waits_again(
    cluster: ToyCluster, consumer: Consumer, silence: Silence
) -> None:
    at_the_end(consumer, silence)
    fill(cluster, *AT, [b"a"])
    assert [record.value for record in read(consumer, 1)] == [b"a"]
    until_long(consumer, silence)
    assert silence.waits_ms == GROWING * 2


def test_a_seek_starts_the_waits_again(consumer: Consumer, silence: Silence) -> None:
    at_the_end(consumer, silence)
    consumer.seek(AT, 0)
    until_long(consumer, silence)
    assert silence.waits_ms == GROWING * 2


def test_a_new_leader_starts_the_waits_again(cluster: ToyCluster, consumer: Consumer, silence: Silence) -> None:
    at_the_end(consumer, silence)
    cluster.move_leader(*AT)
    wait_for(lambda: consumer.poll(10) == {} and len(silence.waits_ms) >= 2 * len(GROWING), "the new leader is silent")
    assert silence.waits_ms == GROWING * 2


def test_newer_metadata_with_the_same_leader_change_nothing(
    cluster: ToyCluster, consumer: Consumer, silence: Silence
) -> None:
    silence.parks_at_ms = 2_000
    consumer.assign([AT])
    consumer.seek(AT, 0)
    wait_for(lambda: consumer.poll(10) == {} and silence.is_at(2_000), "a fetch waits")
    consumer._runtime.run(consumer._engine.cluster.refresh(("flights",)), 10)
    silence.parks_at_ms = LONG_WAIT_MS
    until_long(consumer, silence)
    assert silence.waits_ms == GROWING


def test_a_leader_that_hangs_after_a_silence_is_left_as_fast_as_any(
    cluster: ToyCluster, consumer: Consumer, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch before the records waited for long, and so did the look whether it is late; this one does not."""
    looks: list[FetchStream] = []
    look = FetchStream._look

    def noted(stream: FetchStream) -> None:
        looks.append(stream)
        look(stream)

    monkeypatch.setattr(FetchStream, "_look", noted)
    at_the_end(consumer, silence)
    wait_for(lambda: bool(looks), "the stream has looked, and looks again when the long wait should be over")
    silence.hangs = True
    fill(cluster, *AT, [b"a"])
    read(consumer, 1)
    wait_for(lambda: silence.is_at(500), "the next fetch is sent")
    cluster.move_leader(*AT, silently=True)
    silence.hangs = False
    fill(cluster, *AT, [b"b"])
    assert [record.value for record in read(consumer, 1, deadline_s=10)] == [b"b"]


def test_a_pause_holds_back_the_records_of_a_fetch_that_waits(
    cluster: ToyCluster, consumer: Consumer, silence: Silence
) -> None:
    at_the_end(consumer, silence)
    consumer.pause(AT)
    fill(cluster, *AT, [b"a"])
    assert consumer.poll(200) == {}
    consumer.resume(AT)
    assert [record.value for record in read(consumer, 1)] == [b"a"]


def test_no_call_waits_for_a_fetch_that_waits(cluster: ToyCluster, silence: Silence) -> None:
    with_coordinator(cluster)
    consumer = Consumer("flights", **cluster.options, group_id="board", auto_offset_reset="earliest")
    until_long(consumer, silence)
    assert took_s(lambda: consumer.poll(10)) < 5
    assert took_s(consumer.unsubscribe) < 5
    consumer.subscribe(["flights"])
    until_long(consumer, silence)
    assert took_s(consumer.close) < 5


def test_a_group_hands_over_partitions_whose_fetches_wait(cluster: ToyCluster, silence: Silence) -> None:
    cluster.create_topic("gates", partitions=2)
    with_coordinator(cluster)
    options: dict[str, Any] = {**cluster.options, "group_id": "board", "auto_offset_reset": "earliest"}
    options["heartbeat_interval_ms"] = 50
    with Consumer("gates", **options) as first:
        until_long(first, silence)
        with Consumer("gates", **options) as second:

            def have_one_each() -> bool:
                assert first.poll(10) == second.poll(10) == {}
                return len(first.assignment()) == len(second.assignment()) == 1

            wait_for(have_one_each, "each has one", 10)
