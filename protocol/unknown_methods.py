"""The refusal of a method that this endpoint does not serve: most likely the request was meant for another process.

The system gives the port of a process that has ended to the next one, on the same host and with the same secret. So a
remembered address may lead to a broker, a replica or a coordinator in place of the one that was looked up. That is a
reason to look again, as a connection that fails is, and never one to give up a record or a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.base.errors import ConnectionFailed, InvalidRequest, RaylogError

_known: Final[set[str]] = set()
"""The methods of all kinds of endpoints."""


def know(methods: Iterable[str]) -> None:
    """Learn names of methods; done once by whatever serves any, with those of all pages."""
    _known.update(methods)


def unknown_method(endpoint: str, method: str) -> RaylogError:
    """Return the error for a method that a kind of endpoint does not serve, before anything is done for the request.

    Retriable, with metadata to refresh, if another kind of endpoint serves the method; else InvalidRequest.
    """
    if method in _known:
        return ConnectionFailed(
            f"A {endpoint} listens at this address and serves no {method}: it was another process's. Look it up again."
        )
    return InvalidRequest(f"A {endpoint} knows no method {method!r:.80}.")
