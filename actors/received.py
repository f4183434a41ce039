"""Makes the event of a machine from a request that has arrived. Used by the shells; keeps no state."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from raylog.actors.permissions import sees_offset
from raylog.core.decision import RequestId
from raylog.core.received import Received, Sender
from raylog.protocol.method import Endpoint
from raylog.rpc import Grant


class ArrivedRequest(Protocol):
    """A request to an owner of state: :class:`raylog.rpc.Request`, or its counterpart in the simulator."""

    method: str
    args: Any

    @property
    def grant(self) -> Grant | None:
        """What the sender's token grants; None: the sender has proved a secret."""

    @property
    def peer_host(self) -> str:
        """Where the sender is; empty = not known."""


def received(endpoint: Endpoint, request: ArrivedRequest, number: RequestId, now_ms: int) -> Received[Any]:
    """Return the request as an event; the machine will reply to ``number``.

    Raises :class:`InvalidRequest` for a method that the endpoint does not have, and for malformed fields.
    """
    return Received(
        message=endpoint.read_request(request.method, request.args),
        cause=request.method,
        request=number,
        now_ms=now_ms,
        sender=sender_of(request),
    )


def received_by_role(request: Any, number: RequestId, now_ms: int) -> Received[Any]:
    """Return a request to a role as an event: its message has been read, and its sender does not matter."""
    return Received(message=request.args, cause=request.method, request=number, now_ms=now_ms)


def sender_of(request: ArrivedRequest) -> Sender:
    """Return what the connection shows of the request's sender."""
    grant = request.grant
    if grant is None:
        return Sender(host=request.peer_host)
    return Sender(
        host=request.peer_host,
        transactional_id_prefix=grant.transactional_id_prefix or "",
        sees_offset=partial(sees_offset, grant),
    )
