"""All endpoints, and through them all methods. For tests, documents, and the refusal of another endpoint's methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raylog.protocol.broker import BROKER
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.method import AnyMethod, Endpoint
from raylog.protocol.notifications import BROKER_SESSION, COORDINATOR_SESSION, REPLICA_SESSION
from raylog.protocol.replica import REPLICA
from raylog.protocol.transactions import TRANSACTION_COORDINATOR

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    BROKER,
    REPLICA,
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    CONTROLLER,
    BROKER_SESSION,
    REPLICA_SESSION,
    COORDINATOR_SESSION,
)


def methods() -> Iterator[tuple[Endpoint, AnyMethod]]:
    """Yield every method with the endpoint that serves it."""
    for endpoint in ENDPOINTS:
        for method in endpoint.methods.values():
            yield endpoint, method
