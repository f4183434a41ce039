"""Classifies the errors of a batch that a role has sent to another partition. Pure."""

from __future__ import annotations

from raylog.core.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)


def is_replaced(error: BaseException) -> bool:
    """Return whether the topic was deleted or replaced, or has lost the producer's state.

    If so, the role goes on with another producer id. If a leader does not know the topic, that proves nothing, because
    it may not have received its metadata yet.
    """
    if isinstance(error, UnknownTopicOrPartition):
        return not error.is_remote
    return isinstance(error, OutOfOrderSequence | InvalidProducerEpoch)


def is_refusal(error: BaseException) -> bool:
    """Return whether the target will never take these bytes; nothing of the batch is stored.

    RecordTooLarge counts even if it is not remote: this end of the connection raises it, too. CorruptMessage counts
    although it is retriable: the batch was damaged before it was sent, and would be each time.
    """
    if isinstance(error, RecordTooLarge):
        return True
    if is_replaced(error) or not isinstance(error, RaylogError) or not error.is_remote:
        return False
    return isinstance(error, CorruptMessage) or not error.retriable
