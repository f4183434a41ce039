"""Errors that a client raises itself: no server sent them. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, StaleMetadataError
from raylog.base.errors.cluster import InvalidRequest


class ConnectionFailed(StaleMetadataError):
    """The server could not be reached, or the connection broke before the answer came."""

    code = 1001


class BufferExhausted(RaylogError):
    """The producer's buffer stayed full for ``max_block_ms``."""

    code = 1002


class DeliveryTimedOut(RaylogError):
    """The record was not acknowledged within ``delivery_timeout_ms``; it may or may not be stored."""

    code = 1003


class ClientClosed(RaylogError):
    """The client was closed before or during this call."""

    code = 1004


class NoClusterFound(RaylogError):
    """No Raylog cluster runs here: call raylog.start(), or give its address (bootstrap; in Spark raylog.bootstrap)."""

    code = 1005


class NoOffsetForPartition(RaylogError):
    """There is no committed offset and ``auto_offset_reset`` is 'none'."""

    code = 1006


class CommitFailed(RaylogError):
    """The commit was refused because the group has rebalanced; poll more often or raise ``max_poll_interval_ms``."""

    code = 1007


class RecordDeserializationFailed(RaylogError):
    """A deserializer refused a record; ``seek()`` behind its offset to go on without it."""

    code = 1010


class TransactionAborted(RaylogError):
    """The record was not sent, because its transaction was aborted."""

    code = 1014


class WrongVersions(RaylogError):
    """An installed package has a version that does not work with the others; the message names the versions needed."""

    code = 1015


class SparkStartFailed(RaylogError):
    """Spark did not start on the Ray cluster; the message says what is missing, or which log has the reason."""

    code = 1016


class ConcurrentUse(InvalidRequest):
    """Two threads or tasks use what is for one, or a signal handler what its thread is amid; the message says which."""

    code = 1080


class InterceptorFailed(RaylogError):
    """An interceptor raised for a record; its cause is that error, and ``details`` have the record."""

    code = 1081


class HandlerFailed(RaylogError):
    """The handler of a WorkerPool raised for a record; its cause is that error, and ``details`` have the record."""

    code = 1082


class AssignorFailed(RaylogError):
    """An assignor raised, or returned what no group can use; ``details`` name it, and its cause is what it raised."""

    code = 1083
