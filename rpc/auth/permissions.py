"""Which role may call which method of an endpoint, and which requests a token covers.

Made from the pages by `protocol/permissions.py`. `Connection` refuses forbidden requests before the handler sees them.
Pure, except for the clock by which tokens expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raylog.core.errors import ClusterAuthorizationFailed, InvalidRequest, RaylogError
from raylog.rpc.auth.credentials import Role
from raylog.rpc.auth.tokens import ReadGrant
from raylog.rpc.request import Handler, Request

Covers = Callable[[str, Any, ReadGrant], bool]
"""Whether a grant covers a request, by its method and arguments."""


def _covers_nothing(method: str, args: Any, grant: ReadGrant) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Permissions:
    """The lowest role for each method of one kind of endpoint; a method without an entry is for the cluster itself
    only, so that a new one is closed by default."""

    endpoint: str
    """The kind of endpoint, as refusals name it."""
    roles: Mapping[str, Role]
    covers: Covers = _covers_nothing
    _sets: dict[Role, frozenset[str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Compute the sets once: they are read for every request."""
        for role in (Role.READER, Role.CLIENT):
            self._sets[role] = frozenset(method for method, lowest in self.roles.items() if lowest <= role)

    def allowed(self, role: Role) -> frozenset[str] | None:
        """The methods that a role may call; None for all."""
        return self._sets.get(role)

    def admit(self, role: Role, grant: ReadGrant | None, handler: Handler) -> tuple[frozenset[str] | None, Handler]:
        """The methods that a peer may call, and the handler of its requests."""
        return self.allowed(role), handler if grant is None else self.guarded(handler, grant)

    def refusal(self, method: str, role: Role) -> RaylogError:
        """The error for a method that a role may not call."""
        needed = self.roles.get(method)
        if needed is None:
            return InvalidRequest(f"A {self.endpoint} knows no method {method!r} for clients.")
        whose = "the cluster's own secret" if needed == Role.CLUSTER else "a client's secret"
        mine = "a token" if role == Role.READER else "a client's secret"
        return ClusterAuthorizationFailed(
            f"{method} of a {self.endpoint} needs {whose}; this connection has proved {mine}."
        )

    def guarded(self, handler: Handler, grant: ReadGrant) -> Handler:
        """The handler of a connection with only a token: refuses requests outside the grant or after its end."""

        def guard(request: Request) -> None:
            if time.time() >= grant.expires_s:
                request.fail(
                    ClusterAuthorizationFailed("The token of this connection has expired; plan the read again.")
                )
            elif not self.covers(request.method, request.args, grant):
                request.fail(
                    ClusterAuthorizationFailed(f"The token of this connection does not cover this {request.method}.")
                )
            else:
                handler(request)

        return guard
