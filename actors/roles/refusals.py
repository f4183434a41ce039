"""What it means that a target did not take a batch of a role: the same for every role that sends. Pure."""

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
    """Return whether the target is another one now, or has lost what the producer sent: another producer begins.

    A leader that does not know the topic proves nothing: it may not have received it yet.
    """
    if isinstance(error, UnknownTopicOrPartition):
        return not error.is_remote
    return isinstance(error, OutOfOrderSequence | InvalidProducerEpoch)


def is_refusal(error: BaseException) -> bool:
    """Return whether these bytes are never taken: nothing of them is stored, or will be.

    Too many bytes are refused by the own end of the connection as well. A batch that its target finds damaged is
    damaged as it is sent, each time.
    """
    if isinstance(error, RecordTooLarge):
        return True
    if is_replaced(error) or not isinstance(error, RaylogError) or not error.is_remote:
        return False
    return isinstance(error, CorruptMessage) or not error.retriable
