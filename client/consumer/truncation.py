"""Log truncation (KIP-320): whether a new leader has the records that a consumer has read, and the reset if not.

After a clean election it has. After an unclean one its log may be shorter, or hold other records at the same offsets: a
consumer that simply continued would read another history from its middle. Used by `fetcher.py` and
`engine.py`. May touch: the network.
"""

from __future__ import annotations

import logging

from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.local_files import NearReadFailed
from raylog.core.errors import CorruptMessage, InvalidRequest, LogTruncation, OffsetOutOfRange, RetriableError
from raylog.core.ids import LeaderEpoch, Offset
from raylog.protocol.replica import OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest
from raylog.rpc import Connection

logger = logging.getLogger(__name__)


class CreatedAgain(RetriableError):
    """The topic was deleted and created again, with this id. Not for users: their next poll begins with the new one."""

    def __init__(self, topic_id: str, start: Start) -> None:
        super().__init__(f"The topic was created again, with the id {topic_id}.")
        self.topic_id = topic_id
        self.start = start


def must_compare(state: PartitionState, leader_epoch: int) -> bool:
    """Whether the records read so far have to be compared with this epoch's leader before the next fetch from it."""
    if leader_epoch <= state.compared_epoch:
        return False
    if state.epochs.latest < 0 and not state.buffered_bytes:
        state.compared_epoch = leader_epoch  # nothing to compare: a new position, or a seek
        return False
    return True


async def has_what_was_read(
    state: PartitionState, leader: PartitionInfo, connection: Connection, timeout_s: float
) -> bool:
    """Compare with the leader; False when it lacks records, which `take` then raises, or after a concurrent seek.

    Everything buffered has to be opened, so that the newest of `epochs` is that of the record before `fetch_offset`.
    """
    session, offset, epoch = state.session, state.fetch_offset, state.epochs.latest
    try:
        divergent = await _divergence(state, leader, connection, timeout_s)
    except InvalidRequest:
        divergent = offset  # a leader of the first release, which has no such request
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

    The first request is for the newest epoch read. A leader without it names its own epoch before, and where that ends;
    when nothing of that epoch was read either, the next request is for the epoch read before, as a follower's is
    (KIP-279). Kafka's consumers send one request, and skip what lies between after two unclean elections.
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
    """Recover a partition from its pending error; True when it has another position to fetch from now.

    ``resets``: positions outside the log are reset by auto_offset_reset. A truncated one moves to where the histories
    diverge, as in Kafka: records before it were read already.
    """
    failure = state.failure
    if isinstance(failure, CreatedAgain):
        state.begin_again(failure.topic_id, failure.start)
    elif isinstance(failure, LogTruncation) and resets:
        divergent = failure.details["divergent_offset"]
        assert isinstance(divergent, int)  # it is made above
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
