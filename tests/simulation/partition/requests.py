"""Requests on the virtual network: messages from clients and followers, and the answers that a process owes.

A message may arrive twice; each arrival is a request of its own to its receiver, and owes one answer. Each implements
``raylog.actors.replica.ports.ReplicaRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from raylog.base.errors import RaylogError
from raylog.core.replication.events import ProposeIsr, ResignLeadership, SendFetch
from tests.simulation.partition.disk import Entry
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.replica import ReplicaProcess


class ProduceRequest:
    """A client's batch in flight, and how to report its outcome to the client."""

    __slots__ = ("acks", "answer", "client", "leader_epoch", "producer", "sequence", "timeout_ms", "value")

    def __init__(
        self,
        *,
        client: int,
        value: int,
        producer: int,
        sequence: int,
        acks: int,
        leader_epoch: int,
        timeout_ms: int,
        answer: Callable[[int, int | None], None],
    ) -> None:
        """``answer`` takes an error code (0 = stored) and the offset."""
        self.client = client
        self.value = value
        self.producer = producer
        self.sequence = sequence
        self.acks = acks
        self.leader_epoch = leader_epoch
        self.timeout_ms = timeout_ms
        self.answer = answer


class DeleteRequest:
    """An administrator's request to delete the records below an offset; ``before`` -1 means all committed ones."""

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


class Arrived:
    """One arrival of a request at a process. L6: it is answered once."""

    __slots__ = ("append_ms", "began_ns", "deadline_ms", "is_answered", "opened_for", "process")
    RULE: ClassVar = "L6"

    payload: Any = ()
    room_bytes = 1 << 30
    grant = None

    def __init__(self, process: ReplicaProcess, wait_ms: int) -> None:
        """It arrives now, and must be answered within ``wait_ms``."""
        self.process = process
        self.began_ns = 0
        self.append_ms = -1
        self.opened_for: object = None
        self.deadline_ms = process.world.now_ms + wait_ms
        self.is_answered = False

    @property
    def is_deserted(self) -> bool:
        """Clients do not disconnect."""
        return False

    def reply(self, args: Any = None, payload: Any = ()) -> None:
        """Take the answer."""
        self._once()
        self._replied(args, payload)

    def fail(self, error: BaseException) -> None:
        """Take an error as the answer."""
        self._once()
        self._failed(error)

    def _once(self) -> None:
        if self.is_answered:
            raise Violation(self.RULE, f"broker {self.process.broker} answers {type(self).__name__} twice")
        self.is_answered = True

    def _replied(self, args: Any, payload: Any) -> None:
        raise NotImplementedError

    def _failed(self, error: BaseException) -> None:
        raise NotImplementedError


class _OfClient(Arrived):
    __slots__ = ("request",)

    request: ProduceRequest | DeleteRequest

    def _send_answer(self, code: int, result: int | None) -> None:
        process, request = self.process, self.request
        process.simulation.network.send(process.broker, request.client, request.answer, code, result)

    def _failed(self, error: BaseException) -> None:
        self._send_answer(error.code if isinstance(error, RaylogError) else getattr(error, "code", -1), None)


class ArrivedProduce(_OfClient):
    """A producer's batch, as a buffer that the log stamps."""

    __slots__ = ("payload",)

    def __init__(self, process: ReplicaProcess, request: ProduceRequest) -> None:
        """Create from a fresh copy of the batch."""
        super().__init__(process, request.timeout_ms)
        self.request = request
        self.payload = [Entry(-1, request.value, request.producer, request.sequence, 0)]

    def _replied(self, args: Any, payload: Any) -> None:
        assert isinstance(self.request, ProduceRequest)
        self.process.simulation.checks.acknowledged(self.process, self.request, args.base_offset)
        self._send_answer(0, args.base_offset)


class ArrivedDeletion(_OfClient):
    """A request to delete records."""

    __slots__ = ()

    def __init__(self, process: ReplicaProcess, request: DeleteRequest) -> None:
        """It arrives now."""
        super().__init__(process, request.timeout_ms)
        self.request = request

    def _replied(self, args: Any, payload: Any) -> None:
        assert isinstance(self.request, DeleteRequest)
        self.process.simulation.checks.deletion_answered(self.process, self.request.before, args.low_watermark)
        self._send_answer(0, args.low_watermark)


Take = Callable[["ReplicaProcess", Any, Sequence[Entry]], None]
"""Takes the answering process, its reply or error, and the entries that belong to it."""


class ArrivedRead(Arrived):
    """A consumer's fetch or look-up, and the receiver of its answer: an error, or the reply with its entries."""

    __slots__ = ("least", "offset", "take")

    def __init__(self, process: ReplicaProcess, take: Take, offset: int = 0, least: int = 0, wait_ms: int = 0) -> None:
        """``take`` is called when the process answers. A fetch waits ``wait_ms`` for ``least`` entries."""
        super().__init__(process, wait_ms)
        self.take = take
        self.offset = offset
        self.least = least

    def is_due(self, high_watermark: int) -> bool:
        """Whether the fetch has enough entries."""
        return self.least > 0 and self.offset + self.least <= high_watermark

    def _replied(self, args: Any, payload: Any) -> None:
        if len(payload) < self.least and self.process.world.now_ms < self.deadline_ms:
            raise Violation(self.RULE, f"a consumer that waits for {self.least} entries gets {len(payload)} too early")
        self.take(self.process, args, tuple(payload))

    def _failed(self, error: BaseException) -> None:
        self.take(self.process, error, ())


class ArrivedFetch(Arrived):
    """A follower's fetch; its connection lives as long as the follower."""

    __slots__ = ("fetch", "sender")

    def __init__(self, process: ReplicaProcess, sender: ReplicaProcess, fetch: SendFetch) -> None:
        """It arrives now."""
        super().__init__(process, process.simulation.faults.fetch_wait_ms)
        self.sender = sender
        self.fetch = fetch

    @property
    def is_deserted(self) -> bool:
        """Whether the follower's process has ended."""
        return not self.sender.alive

    def _replied(self, args: Any, payload: Any) -> None:
        process, fetch, sender = self.process, self.fetch, self.sender
        entries: Sequence[Entry] | bytes = payload if args.has_producers else tuple(payload)
        process.simulation.checks.earned.answered(fetch.leader_epoch, args.leader_epoch)
        process.simulation.network.send(
            process.broker, sender.broker, sender.fetch_answered, fetch.request, args, entries, fetch.fetch_offset
        )

    def _failed(self, error: BaseException) -> None:
        log_start = getattr(error, "details", {}).get("log_start_offset", 0)
        process, sender, code = self.process, self.sender, getattr(error, "code", -1)
        process.simulation.network.send(
            process.broker, sender.broker, sender.fetch_failed, self.fetch.request, code, log_start
        )


class Uplink(Protocol):
    """The part of the control session that a replica process uses."""

    def propose(self, effect: ProposeIsr) -> None:
        """Send an ISR proposal."""

    def resign(self, effect: ResignLeadership) -> None:
        """Request that the controller let another replica lead."""
