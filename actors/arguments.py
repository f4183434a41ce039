"""Whether the arguments of a request have the types they should have, checked at the door of every endpoint.

What passes is safe to put into events: no machine meets a type it does not expect, so no request, however malformed,
fails halfway through a step. Pure; used by the shells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.core.errors import InvalidRequest
from raylog.rpc import Request

Check = Callable[[object], bool]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def whole(value: object) -> bool:
    """Accept a whole number of 64 bits."""
    return type(value) is int and INT64_MIN <= value <= INT64_MAX


def text(value: object) -> bool:
    """Accept a string."""
    return isinstance(value, str)


def flag(value: object) -> bool:
    """Accept true and false."""
    return isinstance(value, bool)


def octets(value: object) -> bool:
    """Accept bytes."""
    return isinstance(value, bytes)


def anything(_: object) -> bool:
    """Accept whatever msgpack can carry."""
    return True


def optional(check: Check) -> Check:
    """Accept what ``check`` accepts, and nothing at all."""
    return lambda value: value is None or check(value)


def each(check: Check) -> Check:
    """Accept a list whose every element passes ``check``."""
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


def row(*checks: Check) -> Check:
    """Accept a list with exactly one element for each of ``checks``."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(one) for check, one in zip(checks, value, strict=True))
    )


def table(check: Check) -> Check:
    """Accept a mapping from strings to what passes ``check``."""
    return lambda value: isinstance(value, dict) and all(text(key) and check(one) for key, one in value.items())


def arguments(request: Request, *checks: Check) -> list[Any]:
    """Return the arguments of a request; raises :class:`InvalidRequest` unless each passes the check in its place."""
    args = [] if request.args is None and not checks else request.args
    if not isinstance(args, list) or len(args) != len(checks):
        raise InvalidRequest(f"{request.method!r} takes {len(checks)} arguments, not {args!r:.100}.")
    for place, (check, value) in enumerate(zip(checks, args, strict=True), start=1):
        if not check(value):
            raise InvalidRequest(f"Argument {place} of {request.method!r} cannot be {value!r:.100}.")
    return args
