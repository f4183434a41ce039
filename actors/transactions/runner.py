"""Runs a transaction coordinator's state machine: requests, markers, producer ids. See the base class. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from raylog.actors.coordinators.runner import CoordinatorPorts, CoordinatorRequest, CoordinatorRunner
from raylog.actors.received import received
from raylog.core.transactions import events as ev
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.records import ProducerIdentity
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.waiting import Participant
from raylog.protocol.transactions import TRANSACTION_COORDINATOR

RowT = TypeVar("RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)
RequestT = TypeVar("RequestT", bound=CoordinatorRequest)


class TransactionPorts(CoordinatorPorts[_RowT_co], Protocol[_RowT_co]):
    """Ports of a transaction coordinator."""

    def end_transaction(self, effect: ev.EndTxn) -> None:
        """Send the markers of a transaction; ``marker_written`` must follow for each participant, however late."""

    def request_producer_ids(self, count: int) -> None:
        """Request producer ids of the controller; ``producer_ids`` must follow in any case."""


class TransactionRunner(CoordinatorRunner[RequestT, RowT]):
    """The runner of one load of a coordinator's transactions."""

    def __init__(self, machine: TransactionMachine, ports: TransactionPorts[RowT]) -> None:
        """``machine``: a new state machine."""
        self._machine = machine
        own: dict[type[Any], Callable[[Any], object]] = {
            ev.EndTxn: ports.end_transaction,
            ev.RequestProducerIds: lambda effect: ports.request_producer_ids(effect.count),
        }
        super().__init__(machine, ports, partial(received, TRANSACTION_COORDINATOR), own, ticks=True)

    def reconfigure(self, settings: TxnSettings) -> None:
        """Apply these settings from now on."""
        self._machine.reconfigure(settings)
        self._tick_soon()

    def marker_written(self, transactional_id: str, writer: ProducerIdentity, participant: Participant) -> None:
        """Note that a participant (a partition or a group) has ended a transaction, or does not exist any more."""
        self.feed(
            ev.MarkerWritten(
                cause="marker",
                now_ms=self._ports.now_ms(),
                transactional_id=transactional_id,
                writer=writer,
                participant=participant,
            )
        )

    def producer_ids(self, first: int, count: int) -> None:
        """Take ``count`` producer ids from ``first`` on; ``count`` 0 = none at the moment."""
        granted = ev.ProducerIdsGranted(cause="producer ids", now_ms=self._ports.now_ms(), first=first, count=count)
        self.feed(granted)

    def census(self) -> Mapping[str, int]:
        """Return the number of transactional ids by state."""
        return self._machine.census()

    def longest_open_ms(self) -> int:
        """Return the age of the oldest open transaction in milliseconds; -1 = none is open."""
        return self._machine.longest_open_ms(self._ports.wall_ms())

    def counters(self) -> Mapping[str, int]:
        """Return the counters since the log was loaded, by name."""
        return self._machine.counters
