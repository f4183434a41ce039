"""Turns requests into events of the transaction coordinator's state machine. Used by its runner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from raylog.actors.coordinators.runner import CoordinatorRequest
from raylog.actors.derived_events import DerivedEvent, table_of
from raylog.core.transactions import events as ev
from raylog.protocol import transactions
from raylog.protocol.message import Message

EVENTS: Final[Mapping[type[Message], DerivedEvent[ev.Event]]] = table_of(
    (
        DerivedEvent(transactions.INIT_TRANSACTIONS, ev.InitReceived, prefix=lambda _: ""),
        DerivedEvent(transactions.ADD_PARTITIONS_TO_TXN, ev.AddPartitionsReceived, prefix=lambda _: ""),
        DerivedEvent(transactions.ADD_OFFSETS_TO_TXN, ev.AddOffsetsReceived, prefix=lambda _: ""),
        DerivedEvent(transactions.END_TXN, ev.EndReceived),
        DerivedEvent(transactions.VERIFY_TRANSACTION, ev.VerifyReceived),
        DerivedEvent(transactions.LIST_TRANSACTIONS, ev.ListReceived),
        DerivedEvent(transactions.DESCRIBE_TRANSACTION, ev.DescribeReceived),
    )
)
"""How each request becomes an event; the shell answers all other requests itself."""


def event_for(request: CoordinatorRequest, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request; the state machine will reply to ``number``.

    Raises :class:`InvalidRequest` for an unknown method and for malformed fields.
    """
    args = transactions.TRANSACTION_COORDINATOR.read_request(request.method, request.args)
    event = EVENTS[type(args)].make(args, request=number, now_ms=now_ms)
    if isinstance(event, ev.GrowingRequest) and request.grant is not None:
        return replace(event, prefix=request.grant.transactional_id_prefix or "")
    return event
