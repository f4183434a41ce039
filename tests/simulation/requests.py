"""What reaches a replica process from outside, and what it needs of others: clients' requests, the control session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raylog.core.replication.events import ProposeIsr, ResignLeadership


class ProduceRequest:
    """A client's batch on its way, and how to tell the client what became of it."""

    __slots__ = ("acks", "answer", "client", "deadline_ms", "leader_epoch", "producer", "sequence", "value")

    def __init__(
        self,
        *,
        client: int,
        value: int,
        producer: int,
        sequence: int,
        acks: int,
        leader_epoch: int,
        deadline_ms: int,
        answer: Callable[[int, int | None], None],
    ) -> None:
        """``answer`` takes an error code (0 = stored) and the offset."""
        self.client = client
        self.value = value
        self.producer = producer
        self.sequence = sequence
        self.acks = acks
        self.leader_epoch = leader_epoch
        self.deadline_ms = deadline_ms
        self.answer = answer


class DeleteRequest:
    """An administrator's wish to have the records below an offset gone; ``before`` -1 means all that are committed."""

    __slots__ = ("answer", "before", "client", "leader_epoch", "timeout_ms")

    def __init__(
        self, *, client: int, before: int, leader_epoch: int, timeout_ms: int, answer: Callable[[int, int | None], None]
    ) -> None:
        """``answer`` takes an error code (0 = done) and the low watermark."""
        self.client = client
        self.before = before
        self.leader_epoch = leader_epoch
        self.timeout_ms = timeout_ms
        self.answer = answer


class Uplink(Protocol):
    """What a replica process needs of its control session."""

    def propose(self, effect: ProposeIsr) -> None:
        """Send an ISR proposal."""

    def resign(self, effect: ResignLeadership) -> None:
        """Ask the controller to have another replica lead."""
