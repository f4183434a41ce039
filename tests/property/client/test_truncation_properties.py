"""A consumer finds the offset at which what it read and a leader's log diverge, after any number of elections."""

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from raylog.base.epochs import EpochHistory
from raylog.base.errors import LogTruncation
from raylog.base.ids import LeaderEpoch, Offset, TopicPartition
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.consumer.truncation import has_what_was_read
from raylog.client.reading.decode import BatchOpener
from raylog.protocol.replica import OffsetForLeaderEpochRequest
from raylog.rpc import Connection, Reply
from raylog.storage.batch.header import stamp
from raylog.storage.batch.records import encode_batch

FLIGHTS = TopicPartition("flights", 0)
LEADER_EPOCH = 100

Log = list[int]
"""The leader epoch of the record at each offset. Two records at one offset are the same if their epochs are."""


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """What a consumer read and the leader's log: one beginning, and then other epochs each."""
    common: Log = sorted(draw(st.lists(st.integers(0, 9), max_size=12)))
    later = draw(st.sets(st.integers(10, 30), max_size=8))
    read_epochs = draw(st.sets(st.sampled_from(sorted(later)))) if later else set()
    branches = []
    for epochs in (read_epochs, later - read_epochs):
        branch = [epoch for epoch in sorted(epochs) for _ in range(draw(st.integers(1, 4)))]
        branches.append(common + branch)
    return branches[0], branches[1]


def history(log: Log) -> EpochHistory:
    epochs = EpochHistory()
    for offset, epoch in enumerate(log):
        epochs.assign(epoch, offset)
    return epochs


def position_behind(log: Log, first: int) -> PartitionState:
    """The state of a consumer that read a log from this offset to its end, a batch for each record."""
    state = PartitionState(FLIGHTS, BatchOpener(FLIGHTS), Start.POLICY)
    state.move_to(first, log[first - 1] if first else -1)
    for offset in range(first, len(log)):
        batch = bytearray(encode_batch(None, [b"v"], [1]))
        stamp(batch, 0, offset, log[offset])
        state.add(state.session, memoryview(bytes(batch)))
    while state.take(100):
        pass
    return state


class Leader:
    """Answers from the epochs of its log."""

    def __init__(self, log: Log) -> None:
        self.epochs, self.end = history(log), Offset(len(log))

    async def call(self, _method: str, request: OffsetForLeaderEpochRequest, **_: Any) -> Reply:
        found = self.epochs.end_for(LeaderEpoch(request.leader_epoch), self.end)
        return Reply([found.epoch, found.end_offset, 0], memoryview(b""))


async def divergence(state: PartitionState, leader: Leader) -> int:
    info = PartitionInfo(0, 1, LEADER_EPOCH, "h", 9, (1,), (1,))
    if await has_what_was_read(state, info, cast(Connection, leader), 10.0):
        return state.fetch_offset
    try:
        state.take(1)
    except LogTruncation as error:
        return int(str(error.details["divergent_offset"]))
    raise AssertionError("the truncation is not raised")


@given(two_logs(), st.data())
def test_what_was_read_is_kept_up_to_the_first_record_that_differs(logs: tuple[Log, Log], data: st.DataObject) -> None:
    read, leads = logs
    first = data.draw(st.integers(0, len(read)), label="read from")
    state = position_behind(read, first)
    same = next((at for at, pair in enumerate(zip(read, leads, strict=False)) if pair[0] != pair[1]), None)
    same = min(len(read), len(leads)) if same is None else same
    known_from = 0 if first == 0 else first - 1
    found = asyncio.run(divergence(state, Leader(leads)))
    if not read:
        assert found == 0
    elif same >= known_from:
        assert found == same
    else:
        assert found <= known_from, "nothing that was read is the same"
