"""Conversion of keys and values to and from bytes: named shorthands, or any function.

Used by producer and consumer. Null keys and values pass unchanged (a null value is a tombstone). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from raylog.core.errors import InvalidConfig, did_you_mean

Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]


def _string_to_bytes(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"The serializer 'string' takes text, not {type(value).__name__}.")
    return value.encode()


def _int_to_bytes(value: int) -> bytes:
    """Eight bytes, big-endian, signed: what Kafka's LongSerializer writes."""
    return value.to_bytes(8, "big", signed=True)


def _int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_SERIALIZERS: dict[str, Serializer | None] = {
    "bytes": None,
    "string": _string_to_bytes,
    "json": msgspec.json.Encoder().encode,
    "int": _int_to_bytes,
}
_DESERIALIZERS: dict[str, Deserializer | None] = {
    "bytes": None,
    "string": bytes.decode,
    "json": msgspec.json.Decoder().decode,
    "int": _int_from_bytes,
}


def serializer(choice: str | Serializer | None) -> Serializer | None:
    """The function for a choice; None means that bytes pass unchanged. Raises InvalidConfig."""
    return cast("Serializer | None", _find("serializer", choice, _SERIALIZERS))


def deserializer(choice: str | Deserializer | None) -> Deserializer | None:
    """The function for a choice; None means that bytes pass unchanged. Raises InvalidConfig."""
    return cast("Deserializer | None", _find("deserializer", choice, _DESERIALIZERS))


def _find(kind: str, choice: Any, named: dict[str, Any]) -> Any:
    if choice is None or callable(choice):
        return choice
    if choice not in named:
        raise InvalidConfig(did_you_mean(kind, str(choice), named))
    return named[choice]
