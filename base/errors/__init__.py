"""The one tree of errors: one root, Kafka's names and numbers, flags that decide what a client does. Pure.

Every package raises these classes, or subclasses of them; `storage/errors.py` and `rpc/errors.py` hold subclasses that
never leave a process by their own name. Clients branch on ``retriable`` and ``refresh_metadata``, not on names.
``from_code`` turns a number from the wire back into the class. Bugs are a different tree
(:mod:`raylog.base.invariants`).
"""

from __future__ import annotations

from collections.abc import Mapping

# The modules are one namespace, split by subject: a star import each, instead of writing every name twice more.
from raylog.base.errors.base import *  # noqa: F403
from raylog.base.errors.base import RaylogError, UnknownServerError
from raylog.base.errors.client import *  # noqa: F403
from raylog.base.errors.cluster import *  # noqa: F403
from raylog.base.errors.forwarding import *  # noqa: F403
from raylog.base.errors.groups import *  # noqa: F403
from raylog.base.errors.outbox import *  # noqa: F403
from raylog.base.errors.partition import *  # noqa: F403
from raylog.base.errors.queues import *  # noqa: F403
from raylog.base.errors.scheduling import *  # noqa: F403
from raylog.base.errors.suggestions import did_you_mean as did_you_mean
from raylog.base.errors.suggestions import nearest as nearest
from raylog.base.errors.transactions import *  # noqa: F403


def _by_code(root: type[RaylogError]) -> dict[int, type[RaylogError]]:
    found = {child.code: child for child in root.__subclasses__() if "code" in vars(child)}
    for child in root.__subclasses__():
        found |= _by_code(child)
    return found


_CLASSES: Mapping[int, type[RaylogError]] = _by_code(RaylogError)


def from_code(code: int, message: str = "", details: Mapping[str, object] | None = None) -> RaylogError:
    """Return the error that another process sent as a number, with ``is_remote`` set.

    A number that this release does not know becomes an :class:`UnknownServerError` that keeps it as its ``code``.
    """
    kind = _CLASSES.get(code, UnknownServerError)
    error = kind(message, **{key: value for key, value in (details or {}).items() if isinstance(key, str)})
    if kind is UnknownServerError:
        error.code = code
    error.is_remote = True
    return error


__all__ = sorted(
    name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, RaylogError)
)
