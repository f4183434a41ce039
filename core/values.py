"""Values that type checkers keep immutable, at the cost of plain objects.

For objects made by the dozen on the path of every record: at run time ``frozen`` costs a call for each field of each
object, about a sixth of all that a replica's machine does. mypy refuses assignments anyway, because it sees the
standard library's decorator: import it as ``dataclass`` where ``TYPE_CHECKING`` is false.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def dataclass(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[type[Made]], type[Made]]:
    """As ``dataclasses.dataclass``, hashable as a frozen one is, without the check at each assignment."""
    return dataclasses.dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)
