"""Permissions of an endpoint's methods, as :class:`raylog.rpc.Permissions` made from its page. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.core.errors import InvalidRequest
from raylog.protocol.method import Endpoint, TokenScope
from raylog.rpc import Permissions, ReadGrant


def permissions(endpoint: Endpoint, *, is_internal: bool = False) -> Permissions:
    """Return the lowest role for each method, and what a read token covers.

    ``is_internal``: the endpoint serves a partition of an internal topic, which decides what groups have committed.
    """
    roles = {
        method.name: method.internal_role if is_internal and method.internal_role is not None else method.role
        for method in endpoint.methods.values()
    }
    name = f"{endpoint.name} of an internal topic" if is_internal else endpoint.name
    return Permissions(name, roles, _covers(endpoint))


def _covers(endpoint: Endpoint) -> Callable[[str, Any, ReadGrant], bool]:
    def covers(name: str, args: Any, grant: ReadGrant) -> bool:
        method = endpoint.methods[name]
        try:
            request = method.read_request(args)
        except InvalidRequest:
            return False
        match method.token:
            case TokenScope.TOPICS:
                return request.topics is not None and grant.names(request.topics)
            case TokenScope.PARTITION:
                return grant.covers(request.topic_id, request.partition)
            case TokenScope.NOTHING:
                return False

    return covers
