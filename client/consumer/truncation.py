"""Log truncation (KIP-320): detects that a new leader lacks records that a consumer has read, and moves its position.

After a clean election no record is missing. After an unclean one the log may be shorter, or hold other records at the
same offsets: a consumer that just continued would miss records of the new history. Used by `fetcher.py`, `engine.py`.
May touch: the network.
"""

from __future__ import annotations

import logging

from raylog.base.errors import CorruptMessage, InvalidRequest, LogTruncation, OffsetOutOfRange, RetriableError
from raylog.base.ids import LeaderEpoch, Offset
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.local_files import NearReadFailed
from raylog.protocol.replica import OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest
from raylog.rpc import Connection

logger = logging.getLogger(__name__)


class CreatedAgain(RetriableError):
    """The topic was deleted and created again, with this id. Users do not get it: the next poll reads the new topic."""

    def __init__(self, topic_id: str, start: Start) -> None:
        super().__init__(f"The topic was created again, with the id {topic_id}.")
        self.topic_id = topic_id
        self.start = start


def must_compare(state: PartitionState, leader_epoch: int) -> bool:
    """Whether the log of this epoch's leader has to be compared with the records read, before a fetch from it."""
    if leader_epoch <= state.compared_epoch:
        return False
    if state.epochs.latest < 0 and not state.buffered_bytes:
        state.compared_epoch = leader_epoch  # nothing to compare: a new position, or a seek
        return False
    return True


async def has_what_was_read(
    state: PartitionState, leader: PartitionInfo, connection: Connection, timeout_s: float
) -> bool:
    """Compare with the leader's log. False = it lacks records (`take` then raises LogTruncation), or a seek came first.

    All buffered batches have to be opened before: then the newest of `epochs` is that of the record before
    `fetch_offset`.
    """
    session, offset, epoch = state.session, state.fetch_offset, state.epochs.latest
    try:
        divergent = await _divergence(state, leader, connection, timeout_s)
    except InvalidRequest:
        divergent = offset  # a leader of the first release does not have this request
    if state.session != session:
        return False
    state.compared_epoch = leader.leader_epoch
    if divergent >= offset:
        return True
    error_found = LogTruncation(
        f"Partition {state.partition} was truncated: records up to offset {offset} of leader epoch {epoch} were read, "
        f"and the leader of epoch {leader.leader_epoch} has other records, or none, from offset {divergent} on. An "
        "unclean election has lost them. seek() to go on, or set auto_offset_reset to go on at that offset.",
        position=offset,
        divergent_offset=divergent,
        leader_epoch=leader.leader_epoch,
    )
    state.stop_behind(session, error_found)
    return False


async def _divergence(state: PartitionState, leader: PartitionInfo, connection: Connection, timeout_s: float) -> int:
    """The first offset at which the leader's log may differ from what was read; `fetch_offset` if nothing differs.

    The first request is for the newest epoch read. A leader that lacks this epoch answers with its own largest epoch
    below, and where that ends. If nothing of that epoch was read either, the next request is for the largest epoch read
    below it, as a follower does (KIP-279). Kafka's consumers send only one request, and so may miss a divergence after
    two unclean elections.
    """
    deadline = Deadline(timeout_s)
    session, offset, epochs = state.session, state.fetch_offset, state.epochs
    epoch = epochs.latest
    while True:
        request = OffsetForLeaderEpochRequest(state.topic_id, leader.partition, leader.leader_epoch, epoch)
        found, _ = await call(connection, OFFSET_FOR_LEADER_EPOCH, request, timeout_s=deadline.left_s)
        own = epochs.end_for(LeaderEpoch(found.leader_epoch), Offset(offset))
        if found.leader_epoch >= epoch or own.epoch == found.leader_epoch or state.session != session:
            return min(found.end_offset, own.end_offset)
        epoch = own.epoch


def repair(state: PartitionState, *, resets: bool) -> bool:
    """Recover a partition from its pending error; True if it has to be fetched from its new position.

    ``resets``: a position outside the log is reset by auto_offset_reset. After a truncation the position moves to where
    the histories diverge, as in Kafka: records before that were read already.
    """
    failure = state.failure
    if isinstance(failure, CreatedAgain):
        state.begin_again(failure.topic_id, failure.start)
    elif isinstance(failure, LogTruncation) and resets:
        divergent = failure.details["divergent_offset"]
        assert isinstance(divergent, int)  # set in `has_what_was_read`
        logger.warning("%s Reading goes on there.", failure.message)
        state.return_to(divergent)
    elif isinstance(failure, OffsetOutOfRange) and resets:
        state.find_start(Start.POLICY)
    elif isinstance(failure, CorruptMessage | NearReadFailed):
        state.reads_near = state.reads_near and isinstance(failure, CorruptMessage)
        state.refetch()
    else:
        return False
    return True
