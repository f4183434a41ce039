"""Rows of internal topics: records whose key and value are lists of fields. Pure.

A row is a message whose first fields are the key: ``[kind, key fields...]`` and ``[version, other fields...]``. Such
topics are compacted: the last value of a key counts, and a null value (a tombstone) removes the key. As on the wire, a
release may add fields at the end, with a default; a change that readers may not ignore takes the next version, which a
reader refuses instead of guessing (ADR 0143).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from raylog.protocol.message import Message, MessageT

WireRow: TypeAlias = tuple[list[object], list[object] | None]
"""Key and value of a row; a value of None is a tombstone."""
_OCTETS: Final = (bytes, bytearray, memoryview)


def wire_of(message: Message) -> list[object]:
    """Return a message as wire lists, at every depth."""
    fields: list[object] = msgspec.to_builtins(message, builtin_types=_OCTETS)
    return fields


class Row(Message, frozen=True):
    """A row with its value. Its first ``KEY`` fields are the key; a later row with an equal key replaces it."""

    KIND: ClassVar[str]
    """The name that keys of this kind begin with."""
    KEY: ClassVar[int]
    """How many of the fields are the key's."""
    VERSION: ClassVar[int | None] = 1
    """The version that values begin with; None = they have none, and may only gain fields."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields of the key."""
        return msgspec.structs.astuple(self)[: self.KEY]

    def replaced(self, **fields: object) -> Self:
        """Return the row with other values of these fields."""
        return msgspec.structs.replace(self, **fields)

    def to_wire(self) -> WireRow:
        """Return key and value as wire lists."""
        fields = wire_of(self)
        version = () if self.VERSION is None else (self.VERSION,)
        return [self.KIND, *fields[: self.KEY]], [*version, *fields[self.KEY :]]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A row without a value: there is nothing under the key any more."""

    kind: type[Row]
    key: tuple[Any, ...]

    def to_wire(self) -> WireRow:
        """Return the key, and no value."""
        return [self.kind.KIND, *self.key], None


class UnreadableRow(ValueError):
    """A row of a kind or version that this release does not know, or a damaged one."""


RowT = TypeVar("RowT", bound=Row)


class RowKinds(Generic[RowT]):
    """The kinds of rows of one topic."""

    def __init__(self, topic: str, kinds: Iterable[type[RowT]]) -> None:
        """``topic``: for messages about rows that cannot be read."""
        self._topic = topic
        self._kinds: Mapping[str, type[RowT]] = {kind.KIND: kind for kind in kinds}

    def read(self, key: Sequence[object], value: Sequence[object] | None) -> RowT | Tombstone:
        """Return one row of the log.

        Raises :class:`UnreadableRow`: an owner that skipped such a row silently would serve a wrong view.
        """
        kind = self._kinds.get(key[0]) if key and isinstance(key[0], str) else None
        if kind is None:
            raise UnreadableRow(
                f"A row of kind {key[0] if key else None!r} is in {self._topic}; a newer release is needed to read it."
            )
        if value is None and len(key) > kind.KEY:
            return Tombstone(kind, tuple(key[1 : kind.KEY + 1]))
        if not value or kind.VERSION not in (None, value[0]):
            raise UnreadableRow(
                f"A row of version {value[0] if value else None!r} is in {self._topic}; a newer release is needed."
            )
        fields = value if kind.VERSION is None else value[1:]
        return read_fields(kind, [*key[1 : kind.KEY + 1], *fields], f"A row of kind {kind.KIND!r} in {self._topic}")


def read_fields(kind: type[MessageT], fields: Sequence[object], what: str) -> MessageT:
    """Return stored fields as a message; ``what`` names them in errors. Raises :class:`UnreadableRow`."""
    try:
        return msgspec.convert(fields, kind, builtin_types=_OCTETS)
    except msgspec.ValidationError as wrong:
        raise UnreadableRow(f"{what} is damaged: {wrong}.") from None
