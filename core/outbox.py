"""Outbox: the effects that one step of a state machine returns to its shell.

The two lists carry the durability order in their type: a shell that does not wait for the disk has to use the wrong
list. Used by every machine in ``core`` and by both shells (actors and simulator).
"""

from __future__ import annotations

from typing import Generic, TypeVar

EffectT = TypeVar("EffectT")


class Outbox(Generic[EffectT]):
    """Effects of one step, in order.

    ``now`` may be carried out at once, in order. ``after_sync`` may be carried out, in order, only when everything
    that was written up to and including this step is durable.
    """

    __slots__ = ("after_sync", "now")

    def __init__(self) -> None:
        self.now: list[EffectT] = []
        self.after_sync: list[EffectT] = []

    def extend(self, other: Outbox[EffectT]) -> None:
        """Append another step's effects to these, list by list."""
        self.now.extend(other.now)
        self.after_sync.extend(other.after_sync)
