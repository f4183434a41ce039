"""Runs a transaction coordinator's machine: its requests, its markers, its producer ids. See the base class. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from raylog.actors.coordinators.runner import CoordinatorPorts, CoordinatorRequest, CoordinatorRunner
from raylog.actors.transactions.requests import event_for
from raylog.core.transactions import events as ev
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.identity import Identity
from raylog.core.transactions.records import TxnPartition
from raylog.core.transactions.settings import TxnSettings

RowT = TypeVar("RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)
RequestT = TypeVar("RequestT", bound=CoordinatorRequest)


class TransactionPorts(CoordinatorPorts[_RowT_co], Protocol[_RowT_co]):
    """Ports of a transaction coordinator."""

    def end_transaction(self, effect: ev.EndTxn) -> None:
        """Have every participant end a transaction; ``marker_written`` follows for each, however long it takes."""

    def request_producer_ids(self, count: int) -> None:
        """Take producer ids from the controller; ``producer_ids`` follows in any case."""


class TransactionRunner(CoordinatorRunner[RequestT, RowT]):
    """One load of a coordinator's transactions."""

    def __init__(self, machine: TransactionMachine, ports: TransactionPorts[RowT]) -> None:
        """``machine`` is a fresh one."""
        self._machine = machine
        own: dict[type[Any], Callable[[Any], object]] = {
            ev.EndTxn: ports.end_transaction,
            ev.RequestProducerIds: lambda effect: ports.request_producer_ids(effect.count),
        }
        super().__init__(machine, ports, event_for, own)

    def reconfigure(self, settings: TxnSettings) -> None:
        """Use these settings from now on."""
        self._machine.reconfigure(settings)

    def marker_written(self, transactional_id: str, writer: Identity, participant: TxnPartition | str) -> None:
        """Note that a partition, or a group, has ended a transaction, or does not exist any more."""
        self._runner.feed(
            ev.MarkerWritten(
                cause="marker",
                now_ms=self._ports.now_ms(),
                transactional_id=transactional_id,
                writer=writer,
                partition=None if isinstance(participant, str) else participant,
                group=participant if isinstance(participant, str) else None,
            )
        )

    def producer_ids(self, first: int, count: int) -> None:
        """Take ``count`` producer ids from ``first`` on; 0 = there are none at the moment."""
        granted = ev.ProducerIdsGranted(cause="producer ids", now_ms=self._ports.now_ms(), first=first, count=count)
        self._runner.feed(granted)

    def census(self) -> Mapping[str, int]:
        """Return how many transactional ids are in which state."""
        return self._machine.census()

    def longest_open_ms(self) -> int:
        """Return the age of the oldest open transaction; -1 = none is open."""
        return self._machine.longest_open_ms(self._ports.wall_ms())

    def counters(self) -> Mapping[str, int]:
        """Return what happened since the log was loaded, by name."""
        return self._machine.counters
