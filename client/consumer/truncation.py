"""Log truncation (KIP-320): whether a new leader has the records that a consumer has read, and the reset if not.

After a clean election it has. After an unclean one its log may be shorter, or hold other records at the same offsets: a
consumer that simply continued would read another history from its middle. Used by `fetcher.py` and
`engine.py`. May touch: the network.
"""

from __future__ import annotations

import logging

from raylog.client.cluster.connections import call
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.local_files import NearReadFailed
from raylog.core.errors import CorruptMessage, InvalidRequest, LogTruncation, OffsetOutOfRange
from raylog.protocol.replica import OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest
from raylog.rpc import Connection

logger = logging.getLogger(__name__)


def must_compare(state: PartitionState, leader_epoch: int) -> bool:
    """Whether the records read so far have to be compared with this epoch's leader before the next fetch from it."""
    if leader_epoch <= state.compared_epoch:
        return False
    if state.last_epoch < 0 and not state.buffered_bytes:
        state.compared_epoch = leader_epoch  # nothing to compare: a new position, or a seek
        return False
    return True


async def has_what_was_read(
    state: PartitionState, leader: PartitionInfo, connection: Connection, timeout_s: float
) -> bool:
    """Compare with the leader; False when it lacks records, which `take` then raises, or after a concurrent seek.

    Everything buffered has to be opened, so that `last_epoch` is that of the record before `fetch_offset`.
    """
    session, offset, epoch = state.session, state.fetch_offset, state.last_epoch
    request = OffsetForLeaderEpochRequest(state.topic_id, leader.partition, leader.leader_epoch, epoch)
    try:
        found, _ = await call(connection, OFFSET_FOR_LEADER_EPOCH, request, timeout_s=timeout_s)
    except InvalidRequest:
        state.compared_epoch = leader.leader_epoch  # a leader of the first release, which has no such request
        return True
    if state.session != session:
        return False
    divergent = found.end_offset if found.leader_epoch == epoch else min(found.end_offset, offset - 1)
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


def repair(state: PartitionState, *, resets: bool) -> bool:
    """Recover a partition from its pending error; True when it has another position to fetch from now.

    ``resets``: positions outside the log are reset by auto_offset_reset. A truncated one moves to where the histories
    diverge, as in Kafka: records before it were read already.
    """
    failure = state.failure
    if isinstance(failure, LogTruncation) and resets:
        divergent = failure.details["divergent_offset"]
        assert isinstance(divergent, int)  # it is made above
        logger.warning("%s Reading goes on there.", failure.message)
        state.move_to(divergent)
    elif isinstance(failure, OffsetOutOfRange) and resets:
        state.find_start(Start.POLICY)
    elif isinstance(failure, CorruptMessage | NearReadFailed):
        state.reads_near = state.reads_near and isinstance(failure, CorruptMessage)
        state.refetch()
    else:
        return False
    return True
