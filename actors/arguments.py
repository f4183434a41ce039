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


class Shaped:
    """A check of a value that has fields inside; ``take`` returns the value as this release knows it.

    A peer of a later release may add fields at the end, which are cut off; fields that were added :func:`later` may be
    missing, and become their defaults. So releases understand each other while a cluster is upgraded broker by broker.
    """

    __slots__ = ("_fits", "take")

    def __init__(self, fits: Check, take: Callable[[Any], Any]) -> None:
        """``take`` is called only for what ``fits`` accepts."""
        self._fits = fits
        self.take = take

    def __call__(self, value: object) -> bool:
        """Accept what fits."""
        return self._fits(value)


class Later(Shaped):
    """A field that was added after the first release: it may be missing at the end."""

    __slots__ = ("default",)

    def __init__(self, check: Check, default: object) -> None:
        """``default`` has the meaning that requests had before the field existed."""
        super().__init__(check, check.take if isinstance(check, Shaped) else _as_it_is)
        self.default = default


def later(check: Check, default: object = None) -> Check:
    """Accept what ``check`` accepts; a field of an earlier sender that does not have it yet is ``default``."""
    return Later(check, default)


def optional(check: Check) -> Check:
    """Accept what ``check`` accepts, and nothing at all."""

    def fits(value: object) -> bool:
        return value is None or check(value)

    if not isinstance(check, Shaped):
        return fits
    take = check.take
    return Shaped(fits, lambda value: None if value is None else take(value))


def each(check: Check) -> Check:
    """Accept a list whose every element passes ``check``."""

    def fits(value: object) -> bool:
        return isinstance(value, list) and all(check(element) for element in value)

    if not isinstance(check, Shaped):
        return fits
    take = check.take
    return Shaped(fits, lambda value: [take(element) for element in value])


def row(*checks: Check) -> Check:
    """Accept a list with an element for each of ``checks``, and with more behind them, which are ignored."""
    needed = _needed(checks)

    def fits(value: object) -> bool:
        return (
            isinstance(value, list)
            and len(value) >= needed
            and all(check(element) for check, element in zip(checks, value, strict=False))
        )

    return Shaped(fits, lambda value: _taken(checks, value))


def table(check: Check) -> Check:
    """Accept a mapping from strings to what passes ``check``."""
    return lambda value: isinstance(value, dict) and all(text(key) and check(held) for key, held in value.items())


def arguments(request: Request, *checks: Check) -> list[Any]:
    """Return the arguments of a request, one for each of ``checks``, as this release knows them.

    Arguments behind those are of a later release and are ignored; missing ones at the end become their defaults where
    they were added :func:`later`. Raises :class:`InvalidRequest` unless each passes the check in its place.
    """
    args = [] if request.args is None and not checks else request.args
    needed = _needed(checks)
    if not isinstance(args, list) or len(args) < needed:
        raise InvalidRequest(f"{request.method!r} takes {needed} arguments at least, not {args!r:.100}.")
    for place, (check, value) in enumerate(zip(checks, args, strict=False), start=1):
        if not check(value):
            raise InvalidRequest(f"Argument {place} of {request.method!r} cannot be {value!r:.100}.")
    return _taken(checks, args)


def _needed(checks: tuple[Check, ...]) -> int:
    """Return how many fields every release sends."""
    return sum(not isinstance(check, Later) for check in checks)


def _taken(checks: tuple[Check, ...], values: list[Any]) -> list[Any]:
    known = [
        check.take(value) if isinstance(check, Shaped) else value for check, value in zip(checks, values, strict=False)
    ]
    return known + [check.default for check in checks[len(known) :] if isinstance(check, Later)]


def _as_it_is(value: Any) -> Any:
    return value
