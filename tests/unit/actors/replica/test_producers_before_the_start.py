"""A log that begins above 0, as its leader has deleted what was before, knows the producers of that all the same.

Else a producer whose answer was lost repeats its batch to a new leader that stores it a second time.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from raylog.actors.replica.ports import ReplicaRequest
from raylog.base.errors import OffsetOutOfRange
from raylog.base.ids import NO_EPOCH, BrokerId
from raylog.protocol import replica as wire
from raylog.storage.batch.header import end_offset
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.actors.replica.following import ME, OTHER, Clocks, Following, Request, opened
from tests.unit.storage.logs import produced

SENT = produced(0, 2)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def leader_without_records(folder: Path, clocks: Clocks) -> PartitionLog:
    """All that was sent is stored, used, and deleted."""
    leader = opened(folder / "leader", LogConfig(segment_bytes=64), clocks)
    leader.append_as_leader(bytearray(SENT), 1, clocks.wall_ms())
    leader.advance_log_start(2)
    return leader


def begun_again(folder: Path, clocks: Clocks, leader: PartitionLog) -> Following:
    """A replica whose log is lost, and that has learned where its leader's begins."""
    follower = Following(folder, LogConfig(), clocks)
    follower.state(OTHER, 1)
    follower.runner.fetch_failed(follower.fetches[-1].request, OffsetOutOfRange.code, leader.log_start_offset)
    return follower


def answer(follower: Following, leader: PartitionLog, *, producers: bool = True) -> None:
    """The leader answers the last fetch."""
    fetch, end = follower.fetches[-1], leader.log_end_offset
    gives = fetch.lacks_producers and producers
    payload = leader.producers_below(fetch.fetch_offset) if gives else leader.read(fetch.fetch_offset, 1 << 20, end)
    reply = wire.ReplicaFetchReply(1, end, leader.log_start_offset, None, has_producers=gives)
    follower.runner.fetch_answered(
        fetch.request, reply, payload, fetch.fetch_offset if gives else end_offset(payload, fetch.fetch_offset)
    )


@pytest.mark.parametrize("knows", [True, False])
def test_a_batch_that_is_repeated_is_known(tmp_path: Path, clocks: Clocks, knows: bool) -> None:
    leader = leader_without_records(tmp_path, clocks)
    follower = begun_again(tmp_path, clocks, leader)
    assert follower.fetches[-1].lacks_producers
    answer(follower, leader, producers=knows)
    follower.state(ME, 2)
    follower.produce(SENT)
    assert follower.log.log_end_offset == (2 if knows else 4), "4: it is stored a second time"


def test_what_it_knows_outlives_a_crash(tmp_path: Path, clocks: Clocks) -> None:
    leader = leader_without_records(tmp_path, clocks)
    follower = begun_again(tmp_path, clocks, leader)
    answer(follower, leader)
    assert not follower.fetches[-1].lacks_producers, "it is requested once"
    again = opened(tmp_path / "t-0", LogConfig(), clocks)
    assert again.producers == leader.producers
    assert not again.lacks_producers


def test_it_is_requested_again_by_a_life_that_has_no_answer(tmp_path: Path, clocks: Clocks) -> None:
    begun_again(tmp_path, clocks, leader_without_records(tmp_path, clocks))
    assert opened(tmp_path / "t-0", LogConfig(), clocks).lacks_producers


def test_only_what_lies_before_the_start_is_given(tmp_path: Path, clocks: Clocks) -> None:
    leader = leader_without_records(tmp_path, clocks)
    leader.append_as_leader(bytearray(produced(2)), 1, clocks.wall_ms())
    follower = begun_again(tmp_path, clocks, leader)
    answer(follower, leader)
    answer(follower, leader)
    assert follower.log.producers == leader.producers, "the rest comes with its records, once"


def test_a_batch_that_holds_the_start_leaves_the_others_known(tmp_path: Path, clocks: Clocks) -> None:
    leader = leader_without_records(tmp_path, clocks)
    leader.append_as_leader(bytearray(produced(0, 2, producer=8)), 1, clocks.wall_ms())
    leader.advance_log_start(3)
    follower = begun_again(tmp_path, clocks, leader)
    answer(follower, leader)
    answer(follower, leader)
    assert follower.log.producers == leader.producers


def test_a_fetch_that_requests_them_counts_for_nothing(tmp_path: Path, clocks: Clocks) -> None:
    """Its sender would be taken into the ISR, and could lead, before it has the answer."""
    leading = Following(tmp_path, LogConfig(), clocks)
    leading.state(ME, 1, isr=(ME,))
    request = Request()
    args = wire.ReplicaFetchRequest("id", 0, 1, OTHER, 11, 0, NO_EPOCH, 1_000, 0, 0, 0, True)
    leading.runner.receive(cast(ReplicaRequest, request), args)
    assert request.answer.has_producers
    leader = leading.runner.machine._leader if leading.runner.machine is not None else None
    assert leader is not None
    assert leader.followers[BrokerId(OTHER)].durable_end is None
