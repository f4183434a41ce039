"""Simulated clients: producers that never give up a batch, and consumers that read below the exposed high watermark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raylog.base.errors import OffsetOutOfRange
from raylog.base.ids import EARLIEST, LATEST, MAX_TIMESTAMP
from raylog.protocol.replica import ListOffsetsReply
from tests.simulation.partition.disk import NO_PRODUCER_ID, Entry
from tests.simulation.partition.requests import DeleteRequest, ProduceRequest

if TYPE_CHECKING:
    from tests.simulation.partition.replica import ReplicaProcess
    from tests.simulation.partition.simulation import Simulation

_MAX_STALENESS_MS = 300
_REQUEST_TIMEOUT_MS = 400
_VALUES_PER_CLIENT = 1_000_000
_DELETE_TIMEOUT_MS = 2_000
_CONSUMER_PATIENCE_MS = 200
_LOOK_UPS = 0.1
"""Share of look-ups among a consumer's requests."""


class Client:
    """Shared by producers and consumers: a view of the metadata that may be stale."""

    def __init__(self, simulation: Simulation, address: int) -> None:
        """Begin without a leader; ``address`` is negative."""
        self.simulation = simulation
        self.world = simulation.world
        self.address = address
        self.leader = 0
        self.leader_epoch = -1

    def refresh(self) -> None:
        """Fetch metadata from some broker, possibly slightly stale."""
        staleness_us = 0 if self.simulation.healed else self.world.between_us(0, _MAX_STALENESS_MS)
        for when, state in reversed(self.simulation.controller.history):
            if when <= self.world.now_us - staleness_us:
                # A client never goes back to an older leader than it has seen (KIP-320).
                if state.leader_epoch >= self.leader_epoch:
                    self.leader, self.leader_epoch = state.leader, state.leader_epoch
                return


class Producer(Client):
    """One batch at a time, retried until it is acknowledged, so that an unknown outcome is resolved."""

    def __init__(self, simulation: Simulation, address: int, *, idempotent: bool, acks: int) -> None:
        """Idempotent producers use their address as producer id."""
        super().__init__(simulation, address)
        self.acks = acks
        self.producer = -address if idempotent else NO_PRODUCER_ID
        self.sent = 0
        self.acked = 0
        self.stopping = False
        self._attempt = 0
        self._value = 0

    @property
    def idle(self) -> bool:
        """True when no batch is unresolved."""
        return self.acked == self.sent

    def begin(self) -> None:
        """Start a new batch."""
        if self.stopping:
            return
        self._value = -self.address * _VALUES_PER_CLIENT + self.sent
        self.sent += 1
        self._send()

    def _send(self) -> None:
        self._attempt += 1
        self.refresh()
        attempt = self._attempt
        request = ProduceRequest(
            client=self.address,
            value=self._value,
            producer=self.producer,
            sequence=self.sent - 1 if self.producer != NO_PRODUCER_ID else -1,
            acks=self.acks,
            leader_epoch=self.leader_epoch if self.world.chance(0.5) else -1,
            timeout_ms=_REQUEST_TIMEOUT_MS,
            answer=lambda code, offset: self._answered(attempt, code, offset),
        )
        simulation = self.simulation
        if self.leader > 0:
            simulation.network.send(self.address, self.leader, simulation.deliver_produce, self.leader, request)
        self.world.after(_REQUEST_TIMEOUT_MS * 1100, self._timed_out, attempt)

    def _answered(self, attempt: int, code: int, offset: int | None) -> None:
        if attempt != self._attempt:
            return
        self._attempt += 1
        if code == 0 and offset is not None:
            self.acked += 1
            self.simulation.acks += 1
            pause = self.world.random.expovariate(1 / self.simulation.faults.produce_pause_ms)
            self.world.after(int(pause * 1000), self.begin)
            return
        self._attempt += 1
        self.world.after(self.world.between_us(5, 50), self._again, self._attempt)

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._send()

    def _timed_out(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._send()


class Consumer(Client):
    """Reads the partition in order, from the beginning, from the replica it believes to lead, with long polls."""

    def __init__(self, simulation: Simulation, address: int) -> None:
        """Begin at offset 0."""
        super().__init__(simulation, address)
        self.position = 0
        self.read = 0
        self._attempt = 0

    def poll(self) -> None:
        """Fetch from the leader, or look an offset up; continue when the answer arrives or is overdue."""
        self._attempt += 1
        attempt, draw, simulation = self._attempt, self.world.random, self.simulation
        self.refresh()
        wait_ms, least = draw.choice((0, 50, 200)), draw.choice((1, 1, 3))
        self.world.after((wait_ms + _CONSUMER_PATIENCE_MS) * 1000, self._go_on, attempt)
        if self.leader <= 0:
            return
        send, deliver = simulation.network.send, simulation.deliver_read
        if draw.random() < _LOOK_UPS:
            timestamp = draw.choice((EARLIEST, LATEST, MAX_TIMESTAMP))
            send(self.address, self.leader, deliver, self.leader, self, "look_up", self._found, timestamp)
            return

        def answered(process: ReplicaProcess, answer: Any, entries: Sequence[Entry]) -> None:
            self._answered(process, attempt, position, answer, entries)

        position = self.position
        send(self.address, self.leader, deliver, self.leader, self, "read", answered, position, least, wait_ms)

    def _found(self, process: ReplicaProcess, answer: Any, _: Sequence[Entry]) -> None:
        if isinstance(answer, ListOffsetsReply):
            self.simulation.checks.answered(process, answer.offset + (answer.timestamp >= 0), 0, ())

    def _answered(
        self, process: ReplicaProcess, attempt: int, position: int, answer: Any, entries: Sequence[Entry]
    ) -> None:
        """The leader answers; the answer is correct when sent, and may arrive late and after other answers."""
        send = self.simulation.network.send
        if isinstance(answer, BaseException):
            start = getattr(answer, "details", {}).get("start", -1)
            if isinstance(answer, OffsetOutOfRange) and start > position:
                send(process.broker, self.address, self._reset, attempt, start)
            else:
                send(process.broker, self.address, self._go_on, attempt)
            return
        epoch = process.machine.leader_epoch if process.machine is not None else -1
        self.simulation.checks.answered(process, answer.high_watermark, position, entries)
        send(process.broker, self.address, self._take, attempt, position, epoch, entries)

    def _take(self, attempt: int, offset: int, epoch: int, entries: Sequence[Entry]) -> None:
        self.simulation.checks.consumed(self.address, epoch, offset, entries)
        if offset == self.position:
            self.position = offset + len(entries)
            self.read += len(entries)
        self._go_on(attempt)

    def _reset(self, attempt: int, start: int) -> None:
        self.position = max(self.position, start)
        self._go_on(attempt)

    def _go_on(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self.world.after(self.world.between_us(2, 60), self.poll)


class Administrator(Client):
    """Deletes records: all committed ones, some of them, or, by mistake, uncommitted ones too."""

    def delete(self) -> None:
        """Send to the presumed leader; the checkers follow the outcome."""
        self.refresh()
        simulation, draw = self.simulation, self.world.random
        committed = simulation.checks.committed.end
        before = draw.choice((-1, draw.randint(0, committed), max(0, committed - 5), committed + draw.randint(0, 20)))
        request = DeleteRequest(
            client=self.address,
            before=before,
            leader_epoch=self.leader_epoch if self.world.chance(0.5) else -1,
            timeout_ms=_DELETE_TIMEOUT_MS,
            answer=lambda code, low: self._answered(before, code, low),
        )
        if self.leader > 0:
            self.world.log("a client requests the deletion of the records below {}", before)
            simulation.network.send(self.address, self.leader, simulation.deliver_deletion, self.leader, request)

    def _answered(self, before: int, code: int, low_watermark: int | None) -> None:
        self.world.log("deletion below {} is answered with {}, low watermark {}", before, code, low_watermark)
