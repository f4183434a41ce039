"""Serializers and deserializers of keys and values: named ones, or any function.

Used by producer and consumer. Null keys and values pass unchanged (a null value is a tombstone). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from raylog.base.errors import InvalidConfig, did_you_mean

Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]


def _string_to_bytes(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"The serializer 'string' takes text, not {type(value).__name__}.")
    return value.encode()


def _int_to_bytes(value: int) -> bytes:
    """Eight bytes, big-endian, signed, as Kafka's LongSerializer."""
    return value.to_bytes(8, "big", signed=True)


def _int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _msgpack_to_bytes() -> Serializer:
    import msgpack  # imported on use: most clients do not need it

    return partial(msgpack.packb, use_bin_type=True, datetime=True)


def _msgpack_from_bytes() -> Deserializer:
    import msgpack

    # As written: text stays text, bytes stay bytes, and a map may have keys of any type.
    return partial(msgpack.unpackb, raw=False, strict_map_key=False, timestamp=3)


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
_MADE_ON_USE: dict[tuple[str, str], Callable[[], Any]] = {
    ("serializer", "msgpack"): _msgpack_to_bytes,
    ("deserializer", "msgpack"): _msgpack_from_bytes,
}
SHORTHANDS = (*_SERIALIZERS, "msgpack")
"""The names of serializers and deserializers."""


def serializer(choice: str | Serializer | None) -> Serializer | None:
    """The serializer for a name or function; None = bytes pass unchanged. Raises InvalidConfig."""
    return cast("Serializer | None", _find("serializer", choice, _SERIALIZERS))


def deserializer(choice: str | Deserializer | None) -> Deserializer | None:
    """The deserializer for a name or function; None = bytes pass unchanged. Raises InvalidConfig."""
    return cast("Deserializer | None", _find("deserializer", choice, _DESERIALIZERS))


def _find(kind: str, choice: Any, named: dict[str, Any]) -> Any:
    if choice is None or callable(choice):
        return choice
    if (make := _MADE_ON_USE.get((kind, choice))) is not None:
        return make()
    if choice not in named:
        raise InvalidConfig(did_you_mean(kind, str(choice), SHORTHANDS))
    return named[choice]
