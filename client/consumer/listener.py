"""Rebalance listeners: single functions, or an object with the methods of Kafka's listener. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.base.ids import TopicPartition
from raylog.client.consumer.handover import ListenerCall

CallbackWaiter = Callable[[list[TopicPartition]], Any]


class RebalanceListener:
    """Base for listeners; override the methods you need. For an AsyncConsumer they may be coroutine functions.

    They are called inside poll(). `on_partitions_revoked` may still commit(), and `on_partitions_assigned` may seek().
    Each method gets only the partitions that change, as a rebalance revokes only what other members get. With an eager
    assignor of the classic protocol all partitions are revoked, and then the whole new assignment is assigned.
    """

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These partitions are about to be revoked."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These partitions were assigned, perhaps none; with an eager assignor they are the whole assignment."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These partitions were revoked without notice: others may already have them, and a commit would fail.

        By default calls `on_partitions_revoked`.
        """
        return self.on_partitions_revoked(lost)


class ListenerCalls:
    """The user's listener functions by kind of call."""

    def __init__(self) -> None:
        self._functions: dict[str, CallbackWaiter | None] = {}
        self.before: Callable[[ListenerCall], object] | None = None
        """Called before the user's function, if any: a worker pool ends its work on revoked partitions."""

    def set(
        self,
        listener: RebalanceListener | None,
        on_assigned: CallbackWaiter | None,
        on_revoked: CallbackWaiter | None,
        on_lost: CallbackWaiter | None,
    ) -> None:
        """Use these functions; for one that is None, the listener's method."""
        revoked = on_revoked or getattr(listener, "on_partitions_revoked", None)
        self._functions = {
            "assigned": on_assigned or getattr(listener, "on_partitions_assigned", None),
            "revoked": revoked,
            "lost": on_lost or getattr(listener, "on_partitions_lost", None) or revoked,
        }

    def make(self, call: ListenerCall) -> Any:
        """Call the user's function, if there is one; return its result, which an AsyncConsumer may have to await."""
        if self.before is not None:
            self.before(call)
        function = self._functions.get(call.kind)
        return None if function is None else function(call.partitions)
