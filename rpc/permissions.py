"""Which role may call which method of an endpoint, and which requests a token covers.

Made from the pages by `actors/permissions.py`. `Connection` refuses forbidden requests before the handler sees them.
Pure, except for the clock by which tokens expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from raylog.base.access import Role
from raylog.base.errors import ClusterAuthorizationFailed, InvalidRequest, RaylogError, UnknownTopicId
from raylog.rpc.auth.tokens import Grant
from raylog.rpc.request import Handler, Request

MESSAGE_BYTES_DEFAULT = 1_048_588
"""The default of `max.message.bytes`."""

Places: TypeAlias = Mapping[str, Container[int]]
"""Partitions by the id of their topic."""
Missing: TypeAlias = Callable[[str, Any, Grant], str]
"""What a grant lacks for a request, by its method and arguments, as a part of a sentence; empty = it is covered."""
PayloadLacks: TypeAlias = Callable[[Any, memoryview], str]
"""What a grant lacks for a payload that comes with these arguments, in the same words."""


class _Place(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first two fields of the requests that are about a partition."""

    topic_id: str
    partition: int


_decode_place = msgspec.msgpack.Decoder(_Place).decode


def _read_place(args: Any) -> _Place:
    return _decode_place(args) if type(args) is msgspec.Raw else msgspec.convert(args, _Place)


def _names_another(place: tuple[str, int], args: Any) -> bool:
    try:
        found = _read_place(args)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False  # it is about no partition, or malformed
    return (found.topic_id, found.partition) != place


def _lacks_all(method: str, args: Any, grant: Grant) -> str:
    return "a secret"


def _no_places(grant: Grant) -> Mapping[str, Places]:
    return {}


def _any_payload(grant: Grant) -> Mapping[str, PayloadLacks]:
    return {}


def _no_records(grant: Grant) -> int:
    return 0


def token_expired() -> RaylogError:
    """The error for requests of a token after its end."""
    return ClusterAuthorizationFailed(
        "The token of this connection has expired. Make a new one (`raylog token create`) and give it to the client; a "
        "read by Ray Data or Spark makes one when it is planned again."
    )


def _unknown(endpoint: str, method: str) -> RaylogError:
    return InvalidRequest(f"A {endpoint} knows no method {method!r:.80} for clients.")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The lowest role for each method of one kind of endpoint; a method without an entry is for the cluster itself
    only, so that a new one is closed by default."""

    endpoint: str
    """The kind of endpoint, as refusals name it."""
    roles: Mapping[str, Role]
    missing: Missing = _lacks_all
    places: Callable[[Grant], Mapping[str, Places]] = _no_places
    """The partitions for which a grant covers a method, for the methods whose first two fields are topic id and
    partition. Computed once for each connection: producers and consumers call them all the time."""
    payloads: Callable[[Grant], Mapping[str, PayloadLacks]] = _any_payload
    """Checks of payloads, by method: for the methods whose arguments alone do not show what a grant has to cover."""
    message_bytes: Callable[[Grant], int] = _no_records
    """The largest `max.message.bytes` of the topics that a grant writes to here."""
    unknown: Callable[[str, str], RaylogError] = _unknown
    """The refusal of a method that is not stated, by the kind of endpoint and the method."""
    place: tuple[str, int] | None = None
    """Topic id and number of the only partition that is served here, where there is one."""
    notifications: Container[str] = ()
    """The methods that may come as notifications; another one ends its connection."""
    members_only: bool = False
    """Whether only members of the cluster are admitted."""
    now_s: Callable[[], float] = time.time
    """The clock by which tokens end, in seconds since 1970."""
    _sets: dict[Role, frozenset[str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Compute the sets once: they are read for every request."""
        for role in (Role.TOKEN, Role.CLIENT):
            self._sets[role] = frozenset(method for method, lowest in self.roles.items() if lowest <= role)

    def allowed(self, role: Role) -> frozenset[str] | None:
        """The methods that a role may call; None for all."""
        return self._sets.get(role)

    def admit(self, role: Role, grant: Grant | None, handler: Handler) -> tuple[frozenset[str] | None, Handler]:
        """The methods that a peer may call, and the handler of its requests."""
        return self.allowed(role), handler if grant is None else self.guarded(handler, grant)

    def record_bytes(self, grant: Grant) -> int:
        """The most records that a frame of a token's holder has to hold.

        Not less than the default: a producer that has not yet seen a lower limit is refused by the leader, with the
        reason. A limit that is raised holds for connections made from then on.
        """
        writes = any(topic.writes for topic in grant.topics)
        return max(self.message_bytes(grant), MESSAGE_BYTES_DEFAULT) if writes else 0

    def refusal(self, method: str, role: Role, args: Any = None) -> RaylogError:
        """The error for a method that a role may not call.

        A request for another partition than the one that is served here only has the wrong address.
        """
        if self.place is not None and _names_another(self.place, args):
            return UnknownTopicId("This endpoint serves a partition of another topic; refresh the metadata.")
        needed = self.roles.get(method)
        if needed is None:
            return self.unknown(self.endpoint, method)
        whose = "the cluster's own secret" if needed == Role.CLUSTER else "a client's secret"
        mine = "a token" if role == Role.TOKEN else "a client's secret"
        return ClusterAuthorizationFailed(
            f"{method} of a {self.endpoint} needs {whose}; this connection has proved {mine}."
        )

    def guarded(self, handler: Handler, grant: Grant) -> Handler:
        """The handler of a connection with only a token: refuses requests outside the grant or after its end."""
        now_s, expires_s, places = self.now_s, grant.expires_s, self.places(grant)
        payloads = self.payloads(grant)
        if payloads:
            handler = _looking_at(payloads, handler)

        def guard(request: Request) -> None:
            request.grant = grant
            partitions = places.get(request.method)
            if partitions is not None and now_s() < expires_s:
                try:
                    place = _read_place(request.args)
                    covered = place.partition in partitions[place.topic_id]
                except (LookupError, msgspec.DecodeError, UnicodeDecodeError):
                    covered = False  # another topic, or malformed
                if covered:
                    handler(request)
                    return
            refusal = self._refusal(request, grant, now_s())
            if refusal is None:
                handler(request)
            else:
                request.fail(refusal)

        return guard

    def _refusal(self, request: Request, grant: Grant, now_s: float) -> RaylogError | None:
        if now_s >= grant.expires_s:
            return token_expired()
        lacking = self.missing(request.method, request.args, grant)
        if not lacking:
            return None
        return not_covered(request.method, lacking)


def _looking_at(payloads: Mapping[str, PayloadLacks], handler: Handler) -> Handler:
    """Return a handler that checks the payloads of requests whose arguments are covered, then calls `handler`."""

    def look(request: Request) -> None:
        lacks = payloads.get(request.method)
        lacking = "" if lacks is None else lacks(request.args, request.payload)
        if lacking:
            request.fail(not_covered(request.method, lacking))
        else:
            handler(request)

    return look


def not_covered(method: str, lacking: str) -> ClusterAuthorizationFailed:
    """The error for a request that a token does not cover; ``lacking`` is a part of a sentence."""
    return ClusterAuthorizationFailed(f"The token of this connection does not cover this {method}: it lacks {lacking}.")
