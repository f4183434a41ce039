"""Rebalance listeners: functions, or an object with Kafka's listener methods. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.client.consumer.sessions.handover import ListenerCall
from raylog.core.ids import TopicPartition

CallbackWaiter = Callable[[list[TopicPartition]], Any]


class RebalanceListener:
    """Base for listeners; override the methods you need. Those of an AsyncConsumer's listener may be coroutines.

    They are called inside poll(): in `on_partitions_revoked` a commit() still works, in `on_partitions_assigned` a
    seek(). Each method is called with the change alone: in a rebalance a member gives back only what others get. In a
    group of the classic protocol with an eager assignor it gives everything back, and then gets its whole assignment.
    """

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These partitions are about to be revoked."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These partitions have come, perhaps none; with an eager assignor they are the whole assignment."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These partitions may already belong to others; nothing can be committed for them."""
        return self.on_partitions_revoked(lost)


class ListenerCalls:
    """The user's functions by kind of call."""

    def __init__(self) -> None:
        self._functions: dict[str, CallbackWaiter | None] = {}
        self.before: Callable[[ListenerCall], object] | None = None
        """Called before the user's function, whatever that is: a worker pool ends its work on what is given back."""

    def set(
        self,
        listener: RebalanceListener | None,
        on_assigned: CallbackWaiter | None,
        on_revoked: CallbackWaiter | None,
        on_lost: CallbackWaiter | None,
    ) -> None:
        """Take the functions, or the methods of the listener where none is given."""
        revoked = on_revoked or getattr(listener, "on_partitions_revoked", None)
        self._functions = {
            "assigned": on_assigned or getattr(listener, "on_partitions_assigned", None),
            "revoked": revoked,
            "lost": on_lost or getattr(listener, "on_partitions_lost", None) or revoked,
        }

    def make(self, call: ListenerCall) -> Any:
        """Call the user's function, if there is one; its result may have to be awaited."""
        if self.before is not None:
            self.before(call)
        function = self._functions.get(call.kind)
        return None if function is None else function(call.partitions)
