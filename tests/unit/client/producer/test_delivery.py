"""The rules of one partition's delivery, against a leader whose answers the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from raylog.base.errors import (
    ConnectionFailed,
    DuplicateSequence,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    RaylogError,
    RequestTimedOut,
)
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.metadata import MetadataCache, PartitionInfo, TopicInfo
from raylog.client.config import ProducerConfig
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.batch import SEQUENCE_MASK, Batch
from raylog.client.producer.delivery import LEADER_REMEMBERS_S, PRODUCER_EPOCH_MAX, Delivery
from raylog.client.producer.delivery_context import DeliveryContext
from raylog.protocol.broker import InitProducerIdReply
from raylog.protocol.replica import ProduceRequest
from raylog.rpc import Reply
from raylog.storage.batch.header import parse_header

NOW_S = 1_000.0


class Leader:
    """A connection with a partition's leader: keeps each request until the test answers it."""

    def __init__(self) -> None:
        self.requests: list[tuple[ProduceRequest, bytes, Callable[[Reply | RaylogError], None]]] = []
        self.is_closed = False

    def call_then(
        self,
        method: str,
        request: ProduceRequest,
        payload: bytes,
        *,
        timeout_s: float,
        then: Callable[[Reply | RaylogError], None],
    ) -> None:
        assert (method, timeout_s) == ("produce", 30)
        self.requests.append((request, payload, then))

    def notify(self, method: str, request: ProduceRequest, payload: bytes) -> None:
        self.requests.append((request, payload, lambda _: None))

    async def drain(self) -> None:
        """The socket takes everything at once."""

    def abort(self, reason: str) -> None:
        self.is_closed = True

    def acks(self) -> list[int]:
        return [request.acks for request, _, _ in self.requests]

    def sequences(self) -> list[int]:
        return [parse_header(payload).base_sequence for _, payload, _ in self.requests]


class Line:
    """A delivery, its queue, and the cluster around it. Also what the delivery sees as its `ClusterClient`."""

    def __init__(self, **options: Any) -> None:
        config = ProducerConfig(retry_backoff_ms=0, retry_backoff_max_ms=0, **options)
        self.metadata = MetadataCache()
        self.set_leader(epoch=1)
        self.leader = Leader()
        self.refreshes = 0
        self.producer_ids = 0
        accumulator = Accumulator(config, lambda: None)
        [self.queue] = accumulator.topic_queues(self.metadata.topics["t"]).queues
        self.context = DeliveryContext(
            config, cast(ClusterClient, self), accumulator, look_again=self.pump, on_fenced=lambda _: None
        )
        self.delivery = Delivery(self.context, self.queue)

    def set_leader(self, epoch: int, topic_id: str = "first", *, is_asleep: bool = False) -> None:
        row = PartitionInfo(0, 0, epoch, "h", 9, (0,), (0,), is_asleep=is_asleep)
        self.metadata.topics["t"] = TopicInfo(topic_id, "t", internal=False, partitions=(row,), config={}, version=1)

    async def connection(self, *_: object) -> Leader:
        if self.leader.is_closed:
            self.leader = Leader()
        return self.leader

    def learn_leader(self, topic: str, partition: int, error: RaylogError) -> bool:
        return self.metadata.update_leader(
            topic, partition, error.details.get("leader"), error.details.get("leader_topic_id")
        )

    async def refresh(self, *_: object, timeout_s: float) -> None:
        self.refreshes += 1

    async def call_broker(self, *_: object, timeout_s: float) -> InitProducerIdReply:
        self.producer_ids += 1
        return InitProducerIdReply(self.producer_ids, 0)

    def pump(self, now_s: float = NOW_S) -> None:
        self.delivery.pump(now_s)

    async def send(self, *values: bytes) -> list[Batch]:
        """Put each value into a batch of its own, and let the delivery send what it may."""
        topic = self.context.accumulator.topic_queues_by_name["t"]
        batches = [
            self.context.accumulator.append_batch(topic, self.queue, None, [each], [(0, 1)], 20) for each in values
        ]
        self.pump()
        await self.settle()
        return cast(list[Batch], batches)

    async def answer(self, number: int, answer: int | RaylogError) -> None:
        """Answer the request of this number with an offset or an error."""
        then = self.leader.requests[number][2]
        then(answer if isinstance(answer, RaylogError) else Reply([answer, 0], memoryview(b"")))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)


@pytest.fixture
def line() -> Line:
    return Line()


async def test_the_first_batch_goes_alone_until_the_leader_knows_the_producer(line: Line) -> None:
    await line.send(b"0", b"1", b"2")
    assert line.leader.sequences() == [0]
    await line.answer(0, 0)
    assert line.leader.sequences() == [0, 1, 2]


async def test_five_batches_are_in_flight_at_most(line: Line) -> None:
    await line.send(b"first")
    await line.answer(0, 0)
    await line.send(*[b"x"] * 7)
    assert line.leader.sequences() == [0, 1, 2, 3, 4, 5]


async def test_after_a_long_pause_the_first_batch_goes_alone_again(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    monkeypatch.setattr(line.delivery, "_last_stored_s", NOW_S - LEADER_REMEMBERS_S - 1)
    await line.send(b"1", b"2")
    assert line.leader.sequences() == [0, 1]


async def test_a_retry_after_a_failure_goes_alone_too(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    await line.send(b"1", b"2", b"3")
    for number in (1, 2, 3):
        await line.answer(number, NotEnoughReplicas("try again"))
    assert line.leader.sequences() == [0, 1, 2, 3, 1]


async def test_nothing_is_sent_again_before_every_request_is_answered(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    await line.send(b"1", b"2")
    await line.answer(1, NotEnoughReplicas("try again"))
    assert line.leader.sequences() == [0, 1, 2]
    await line.answer(2, NotEnoughReplicas("try again"))
    assert line.leader.sequences() == [0, 1, 2, 1]


async def test_a_late_answer_of_an_earlier_attempt_changes_nothing(line: Line) -> None:
    [batch] = await line.send(b"0")
    await line.answer(0, NotEnoughReplicas("try again"))
    await line.answer(0, 7)
    assert not batch.is_done
    await line.answer(1, 0)
    assert batch.base_offset == 0


async def test_without_acks_a_sleeper_answers_until_its_new_leader_stores() -> None:
    line = Line(acks=0, enable_idempotence=False)
    line.set_leader(epoch=1, is_asleep=True)
    [batch] = await line.send(b"0")
    await line.answer(0, NotLeaderOrFollower("woken", leader=[1, 2, "h", 9], leader_topic_id="first"))
    assert not line.metadata.topics["t"].partitions[0].is_asleep
    await line.answer(1, NotEnoughReplicas("its followers are starting"))
    assert line.leader.acks() == [1, 1, 1]
    assert batch.base_offset < 0, "nothing is stored yet"
    await line.answer(2, 0)
    assert batch.base_offset == 0
    await line.send(b"1")
    assert line.leader.acks() == [1, 1, 1, 0]


async def test_an_answer_to_a_batch_that_was_given_up_changes_nothing(line: Line) -> None:
    [batch] = await line.send(b"0")
    line.delivery.expire(batch.deadline_s)
    assert batch.error is not None
    await line.answer(0, NotEnoughReplicas("try again"))
    await line.send(b"1")
    assert line.refreshes == 0
    assert line.leader.sequences() == [0, 1]


async def test_sequences_begin_again_at_zero_behind_the_largest(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    monkeypatch.setattr(line.delivery, "_next_sequence", SEQUENCE_MASK)
    await line.send(b"1", b"2")
    assert line.leader.sequences() == [0, SEQUENCE_MASK, 0]


async def test_a_duplicate_whose_offset_the_leader_has_forgotten_is_stored(line: Line) -> None:
    [batch] = await line.send(b"0")
    await line.answer(0, DuplicateSequence("long ago"))
    assert (batch.is_done, batch.error, batch.base_offset) == (True, None, -1)


async def test_a_batch_is_repeated_as_often_as_configured() -> None:
    line = Line(enable_idempotence=False, retries=2)
    [batch] = await line.send(b"0")
    for number in range(3):
        assert not batch.is_done
        await line.answer(number, NotEnoughReplicas("try again"))
    assert isinstance(batch.error, NotEnoughReplicas)
    assert len(line.leader.requests) == 3


async def test_a_leader_that_does_not_answer_is_left_and_looked_up_again(line: Line) -> None:
    hanging = line.leader
    await line.send(b"0")
    await line.answer(0, RequestTimedOut("no answer"))
    assert hanging.is_closed
    assert line.refreshes == 1
    assert line.leader.sequences() == [0]


@pytest.mark.parametrize(("epoch", "topic_id", "leaves"), [(2, "first", True), (1, "first", False), (1, "again", True)])
async def test_a_request_to_a_former_leader_is_not_waited_for(
    line: Line, epoch: int, topic_id: str, leaves: bool
) -> None:
    await line.send(b"0")
    line.set_leader(epoch, topic_id)
    line.delivery.leader_changed()
    assert line.leader.is_closed is leaves
    await line.answer(0, ConnectionFailed("aborted"))
    request = line.leader.requests[-1][0]
    assert (request.topic_id, request.current_leader_epoch) == (topic_id, epoch)


async def test_a_hole_in_the_sequences_is_closed_under_a_higher_epoch(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    [late, behind] = await line.send(b"1", b"2")
    line.delivery.expire(late.deadline_s)
    assert (late.is_done, behind.is_done) == (True, False)
    await line.answer(2, OutOfOrderSequence("a gap"))
    header = parse_header(line.leader.requests[-1][1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 1, 0)


async def test_behind_the_highest_epoch_comes_another_producer_id(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    monkeypatch.setattr(line.delivery, "_producer_epoch", PRODUCER_EPOCH_MAX)
    await line.send(b"1")
    await line.answer(1, OutOfOrderSequence("a gap"))
    header = parse_header(line.leader.requests[-1][1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2, 0, 0)


async def test_an_out_of_order_refusal_counts_for_one_attempt_only(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, OutOfOrderSequence("a gap"))
    await line.answer(1, NotEnoughReplicas("try again"))
    assert [parse_header(payload).producer_epoch for _, payload, _ in line.leader.requests] == [0, 1, 1]


async def test_a_refusal_behind_a_batch_that_was_not_stored_raises_no_epoch(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    [_, second] = await line.send(b"1", b"2")
    await line.answer(1, NotEnoughReplicas("try again"))
    await line.answer(2, OutOfOrderSequence("the first is missing"))
    await line.answer(3, 1)
    await line.answer(4, NotEnoughReplicas("stored, but not by enough replicas"))
    await line.answer(5, 2)
    assert second.base_offset == 2
    assert line.leader.sequences() == [0, 1, 2, 1, 2, 2]
    assert {parse_header(payload).producer_epoch for _, payload, _ in line.leader.requests} == {0}


async def test_batches_are_done_in_their_order(line: Line) -> None:
    await line.send(b"0")
    await line.answer(0, 0)
    [first, second] = await line.send(b"1", b"2")
    await line.answer(2, 2)
    assert (first.is_done, second.is_done) == (False, False)
    await line.answer(1, 1)
    assert (first.base_offset, second.base_offset) == (1, 2)


async def test_fed_by_threads_an_answer_brings_a_pass_for_other_work_only(line: Line) -> None:
    passes: list[None] = []
    line.context.accumulator.is_fed_by_threads = True
    await line.send(b"0", b"1")
    line.context.look_again = lambda: passes.append(None)
    await line.answer(0, 0)
    assert len(passes) == 1  # for the second, which had to wait
    line.pump()
    await line.answer(1, 1)
    assert len(passes) == 1
    activity = [line.queue.is_active]
    await line.send(b"2")
    assert [*activity, line.queue.is_active] == [False, True]
    assert line.leader.sequences() == [0, 1, 2]


async def test_where_the_loop_sends_each_answer_brings_a_pass(line: Line) -> None:
    passes: list[None] = []
    await line.send(b"0")
    line.context.look_again = lambda: passes.append(None)
    await line.answer(0, 0)
    assert len(passes) == 1
